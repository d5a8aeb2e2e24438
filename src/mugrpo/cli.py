"""The command line. Heavy imports wait until the arguments are parsed."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mugrpo.arguments import PHASES, parser
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.processes.messages import visible
from mugrpo.processes.stopping import stop_on_signals

if TYPE_CHECKING:
    from mugrpo.run.opened import OpenRun


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Return 0 for success, 2 for bad input, 3 if the run can be resumed, 4 if it learned nothing.
    """
    options, overrides = parser().parse_known_args(arguments)
    try:
        if overrides and not options.takes_overrides:
            raise UsageError(f"{options.command} takes no option {overrides[0]}")
        options.overrides = overrides
        rank = "TORCHELASTIC_RUN_ID" in os.environ
        if "force" in options and not rank:  # it opens a run
            _say(f"{options.target}: loading PyTorch, then the problems and the tokenizer")
        with stop_on_signals(patient=rank) as stop:
            options.stop = stop
            status = _COMMANDS[options.command](options)
    except UsageError as error:
        _complain(error)
        return 2
    except RunStopped as error:
        _complain(f"{error}. {_resume_sentence(options, overrides, str(error))}")
        return 3
    except (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        if error.filename is None:  # it is not about a file
            raise
        _complain(f"{error.filename} cannot be used ({error.strerror}); mend it, and try again")
        return 2
    return status


def _say(text: object) -> None:
    from mugrpo.run.progress import Progress

    Progress().say(str(text))


def _complain(error: object) -> None:
    print(visible(f"mugrpo: {error}"), file=sys.stderr)


def _train(options: argparse.Namespace) -> int:
    from mugrpo.disk.metrics import read_metrics
    from mugrpo.pipeline import train
    from mugrpo.tools.summary import LEARNED_NOTHING, standstill, summarize

    with _opened(options) as run:
        train(run)
        lines = list(read_metrics(run.folder.metrics))
        run.progress.say(summarize(lines))
    if sentence := standstill(lines):
        _complain(sentence)
        return LEARNED_NOTHING
    return 0


def _check(options: argparse.Namespace) -> int:
    from mugrpo.pipeline import check

    with _opened(options) as run:
        check(run)
    return 0


def _phase(options: argparse.Namespace) -> int:
    from mugrpo import pipeline

    with _opened(options) as run:
        if vars(options).get("follow"):
            pipeline.follow(run)
            return 0
        stage = options.stage
        if stage is None:
            schedule = run.schedule()
            stage = min(schedule.stage_of(run.folder.newest_update()), schedule.stages - 1)
        _check_stage(run, stage)
        if options.command == "generate":
            pipeline.generate(run, stage)
        elif options.command == "score":
            pipeline.score(run, stage, again=options.again)
        else:
            pipeline.optimize(run, stage, until=options.until)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from mugrpo.pipeline import evaluate

    with _opened(options) as run:
        newest = run.folder.newest_update()
        update = newest if options.update is None else options.update
        updates = [0, *run.folder.checkpoint_updates()]
        if update not in updates:
            raise UsageError(f"--update {update} has no checkpoint; choose one of {updates}")
        for name, value in evaluate(run, update).items():
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            run.progress.say(f"{name}: {text}")
    return 0


def _bakeoff(options: argparse.Namespace) -> int:
    from mugrpo.tools.bakeoff import bakeoff

    with _opened(options) as run:
        _check_stage(run, options.stage)
        methods = options.objectives.split(",")
        table = bakeoff(run, options.stage, methods, force=options.force, trust=options.trust)
        run.progress.say(f"{table.read_text()}{table.with_name('report.html')}")
    return 0


def _alignment(options: argparse.Namespace) -> int:
    from mugrpo.tools.alignment import alignment, table

    with _opened(options) as run:
        _check_stage(run, options.stage)
        methods = options.objectives.split(",") if options.objectives else []
        rows = alignment(run, options.stage, methods, options.groups, trust=options.trust)
        run.progress.say(table(rows))
    return 0


def _study(options: argparse.Namespace) -> int:
    from mugrpo.study.command import run_study, show_study

    if options.action == "show":
        _say(show_study(options.target))
        return 0
    work = options.work or Path("runs") / "studies" / options.target.stem
    page, failed = run_study(
        options.target,
        work,
        options.jobs,
        keep=options.keep,
        trust=options.trust,
        say=_say,
        stop=options.stop,
    )
    _say(page)
    for sentence in failed:
        _complain(sentence)
    return 3 if failed else 0


def _check_stage(run: OpenRun, stage: int) -> None:
    stages = run.schedule().stages
    if not 0 <= stage < stages:
        raise UsageError(f"--stage {stage}: the run has stages 0 to {stages - 1}")


def _memory(options: argparse.Namespace) -> int:
    from mugrpo.config.load import load_config
    from mugrpo.tools.memory import memory_table

    config = load_config(options.target, options.overrides)
    lines, fault = memory_table(
        config,
        form=options.form,
        prompt_tokens=options.prompt_tokens,
        gpu_gib=options.gpu_memory,
    )
    _say("\n".join(lines))
    if fault:
        raise UsageError(fault)
    return 0


def _repair(options: argparse.Namespace) -> int:
    from mugrpo.tools.repair import repair

    damaged = repair(RunDir(options.target), _say)
    _say(
        f"{damaged} damaged; `mugrpo train {options.target}` goes on and makes what it needs again"
        if damaged
        else "no damage found"
    )
    return 0


def _copy(options: argparse.Namespace) -> int:
    from mugrpo.tools.store import pull, push

    run = RunDir(options.target)
    if options.command == "push":
        push(run, options.url, _say, options.stop.check)
    else:
        pull(options.url, run, _say, options.stop.check)
    return 0


def _merge(options: argparse.Namespace) -> int:
    from mugrpo.tools.merge import merge

    _say(merge(options.target, options.out, options.base))
    return 0


def _report(options: argparse.Namespace) -> int:
    from mugrpo.report import write_report

    _say(write_report(options.targets, options.out))
    return 0


def _objectives(options: argparse.Namespace) -> int:
    from mugrpo.tools.catalog import catalog

    _say("\n".join(catalog()))
    return 0


def _convert(options: argparse.Namespace) -> int:
    from mugrpo.model.pretrained import convert

    _say(convert(options.name, _say))
    return 0


@contextmanager
def _opened(options: argparse.Namespace) -> Iterator[OpenRun]:
    """Open the run that the arguments name, as a rank if torchrun started this process."""
    from mugrpo.processes.ranks import joined
    from mugrpo.run.opening import open_run
    from mugrpo.run.progress import Progress

    with (
        joined(options.command) as ranks,
        open_run(
            options.target,
            overrides=options.overrides,
            run_dir=options.run_dir,
            force=options.force,
            trust=options.trust,
            progress=Progress(shown=ranks.first),
            stop=options.stop,
            ranks=ranks,
        ) as run,
    ):
        options.stop.check()
        yield run


def _resume_sentence(options: argparse.Namespace, overrides: Sequence[str], reason: str) -> str:
    """Return the sentence with the command that resumes the run after it stopped for `reason`.

    It is this command. It has --force only if the way out that `reason` names needs that.
    """
    targets = vars(options).get("targets") or [options.target]
    places = [*map(str, targets), *filter(None, [options.url])]
    if options.command == "pull":
        places.reverse()
    words = ["mugrpo", options.command, *options.action.split(), *places]
    for flag in ("run_dir", "stage", "until", "update", "objectives", "work", "jobs"):
        if (value := vars(options).get(flag)) is not None:
            words += [f"--{flag.replace('_', '-')}", str(value)]
    words += [f"--{flag}" for flag in ("again", "keep") if vars(options).get(flag)]
    words += ["--force"] if "force" in options and "--force" in reason else []
    return f"Nothing published is lost; resume with: {shlex.join([*words, *overrides])}"


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "check": _check,
    **dict.fromkeys(PHASES, _phase),
    "evaluate": _evaluate,
    "bakeoff": _bakeoff,
    "alignment": _alignment,
    "memory": _memory,
    "repair": _repair,
    "push": _copy,
    "pull": _copy,
    "merge": _merge,
    "report": _report,
    "study": _study,
    "objectives": _objectives,
    "convert": _convert,
}
