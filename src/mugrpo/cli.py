"""The command line. Heavy imports wait until the arguments are parsed."""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import shutil
import sys
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mugrpo.arguments import DEMO, GREETING, PHASE_COMMANDS, pages, parser, resuming
from mugrpo.config.base import imported
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.records import WHOLE, Part
from mugrpo.disk.run_dir import RunDir
from mugrpo.processes.launcher import forget_launcher, launched_ranks
from mugrpo.processes.lifetime import DRIVER, follows, let_segments_grow, stop_on_signals
from mugrpo.processes.messages import visible

if TYPE_CHECKING:
    from mugrpo.run.opening import OpenRun


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Return 0 for success, 2 for bad input, 3 if the run can be resumed, 4 if it learned nothing.
    """
    try:
        options, overrides = parser().parse_known_args(arguments)
        if options.command is None:
            if overrides:
                raise UsageError(
                    f"{overrides[0]} needs a command before it; `mugrpo --help` lists them"
                )
            print(GREETING.format(pages=pages()), flush=True)
            return 0
        if overrides and not options.takes_overrides:
            raise UsageError(f"{options.command} takes no option {overrides[0]}; see its --help")
        options.overrides = overrides
        _join_launcher(options.command)
        with stop_on_signals(patient=follows()) as stop:
            options.stop, options.say = stop, _say
            return imported(options.run)(options) or 0
    except UsageError as error:
        _complain(error)
        return 2
    except RunStopped as error:
        _complain(f"{error}. Nothing published is lost; {resuming(options, overrides, str(error))}")
        return 3
    except (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        if error.filename is None:  # it is not about a file
            raise
        _complain(f"{error.filename} cannot be used ({error.strerror}); fix it and retry")
        return 2
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _complain(
            f"the output cannot be written ({error.strerror}); make room, and type the same "
            "command again. Nothing published is lost"
        )
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left to write is tried at the end
        return 3


def _join_launcher(command: str) -> None:
    """Let torchrun and srun start ranks of `optimize`, and parts of the other phases.

    Raises UsageError for other commands, which would be in each other's way.
    """
    if command == "optimize" or DRIVER in os.environ or not launched_ranks():
        return
    if command not in PHASE_COMMANDS:
        raise UsageError(
            f"{command} is one process; torchrun and srun start the ranks of `mugrpo optimize`, "
            "and parts (--part)"
        )
    forget_launcher()


def _say(text: object) -> None:
    from mugrpo.run.progress import Progress

    Progress().say(str(text))


def _complain(error: object) -> None:
    with suppress(OSError):  # standard error may be full, too
        print(visible(f"mugrpo: {error}"), file=sys.stderr, flush=True)


def run_train(options: argparse.Namespace) -> int:
    with opened(options) as run:
        from mugrpo.disk.metrics import counting, surveyed
        from mugrpo.disk.publishing import folder_bytes
        from mugrpo.pipeline import train
        from mugrpo.report.readable import size_text
        from mugrpo.report.summary import LEARNED_NOTHING, standstill, summarize

        train(run)
        metrics = run.folder.metrics
        history = surveyed(metrics)
        run.progress.say(summarize(counting(metrics, history)))
        last = run.folder.checkpoint(run.config.schedule.total_updates)
        report = shlex.join(["mugrpo", "report", str(run.folder.root)])
        kept = run.folder.checkpoint_updates()
        whole, saved = (folder_bytes(of) for of in (run.folder.root, run.folder.checkpoints))
        disk = f"{size_text(whole)}, of which {len(kept)} checkpoints take {size_text(saved)}"
        run.progress.say(f"checkpoint  {last}\ndisk        {disk}\nreport      {report}")
    lines = counting(metrics, history)
    if sentence := standstill(lines, run.config.rollouts.max_new_tokens):
        _complain(sentence)
        return LEARNED_NOTHING
    return 0


def run_check(options: argparse.Namespace) -> None:
    root = options.run_dir or Path("runs") / options.target.stem
    begun, described = root.exists(), (options.gpus, options.gpu_memory, options.nodes)
    if described != (None, None, 1) and not all(n and n > 0 for n in described):
        raise UsageError("write, for example: --gpus 8 --gpu-memory 80 --nodes 4")
    with opened(options) as run:
        from mugrpo.run.machine import Machine
        from mugrpo.stages.check import check

        machine = Machine(*described) if options.gpus else None
        try:
            found = check(run, options.written if machine and not begun else run.config, machine)
        finally:
            if not begun and run.folder.is_untouched():  # a check leaves nothing behind
                shutil.rmtree(root, ignore_errors=True)
        place = ["--run-dir", str(options.run_dir)] if options.run_dir else []
        words = ["mugrpo", "train", str(options.target), *place, *options.overrides]
        where = f" for {machine}" if machine else ""
        run.progress.say(f"ready{where}: {found}: {shlex.join(words)}")


def run_phase(options: argparse.Namespace) -> None:
    text = getattr(options, "part", None)
    part = Part.of(text) if text else WHOLE
    if text and (options.force or getattr(options, "again", False)):
        raise UsageError("--part goes without --force and --again, which change the whole stage")
    with opened(options, apart=bool(text)) as run:
        if run.ranks.follows:
            from mugrpo.hosts.follow import follow

            follow(run)
            return
        from mugrpo import pipeline

        stage = options.stage
        if stage is None:
            schedule = run.config.schedule
            stage = min(schedule.stage_of(run.folder.newest_update()), schedule.stages - 1)
        check_stage(run, stage)
        if options.command == "generate":
            pipeline.generate(run, stage, part)
        elif options.command == "score":
            pipeline.score(run, stage, part, again=options.again)
        else:
            pipeline.optimize(run, stage, until=options.until, wait=60 * options.wait)
    if run.folder.apart:
        run.folder.leave()


def run_evaluate(options: argparse.Namespace) -> None:
    with opened(options) as run:
        from mugrpo.pipeline import evaluate

        update = run.folder.newest_update() if options.update is None else options.update
        updates = [0, *run.folder.checkpoint_updates()]
        if update not in updates:
            raise UsageError(f"--update {update} has no checkpoint; choose one of {updates}")
        from mugrpo.report.summary import measured

        run.progress.say(measured(evaluate(run, update), update))


def check_stage(run: OpenRun, stage: int | None) -> None:
    stages = run.config.schedule.stages
    if stage is not None and not 0 <= stage < stages:
        raise UsageError(f"--stage {stage}: the run has stages 0 to {stages - 1}")


def run_init(options: argparse.Namespace) -> None:
    from mugrpo.tools.init import write_config

    columns = {"prompt": options.prompt_column, "answer": options.answer_column}
    write_config(options.data, options.out, options.model, _say, **columns)


def run_repair(options: argparse.Namespace) -> None:
    from mugrpo.tools.repair import repair

    damaged = repair(RunDir(options.target), _say)
    rest = f"`mugrpo train` or `submit {options.target}` goes on and makes what it needs again"
    _say(f"{damaged} damaged; {rest}" if damaged else "no damage found")


def run_status(options: argparse.Namespace) -> None:
    from mugrpo.report.status import status

    _say("\n".join(status(RunDir(options.target))))


def run_report(options: argparse.Namespace) -> None:
    """Write the report; with `--every`, write it again until the user ends it."""
    from mugrpo.report import write_report

    every, stop = options.every, options.stop
    if every is not None and every < 1:
        raise UsageError(f"--every {every}: it must be 1 second or more")
    page = write_report(options.targets, options.out, every, _say)
    _say(page)
    if options.open:
        webbrowser.open(page.absolute().as_uri())
    while every:
        end = time.monotonic() + every
        while time.monotonic() < end and not stop.signal_name:
            time.sleep(0.1)
        every = None if stop.signal_name else every  # the last page is not loaded again
        write_report(options.targets, options.out, every)


def run_card(options: argparse.Namespace) -> None:
    from mugrpo.report.card import write_card

    _say(write_card(options.target, options.out))


def run_merge(options: argparse.Namespace) -> None:
    from mugrpo.tools.merge import merge

    _say(merge(options.target, options.out, options.base, force=options.force))


def run_objectives(options: argparse.Namespace) -> None:
    from mugrpo.tools.catalog import catalog

    _say("\n".join(catalog()))


def run_vllm_env(options: argparse.Namespace) -> None:
    from mugrpo.tools.vllm_env import make_environment

    make_environment(options.target, _say, options.stop.check)


def run_doctor(_options: argparse.Namespace) -> None:
    from mugrpo.tools.doctor import examine

    examine(_say)


@contextmanager
def opened(options: argparse.Namespace, *, apart: bool = False) -> Iterator[OpenRun]:
    """Open the run that the arguments name, as a rank if this process is one; see `open_run`."""
    from mugrpo.run.progress import Progress
    from mugrpo.run.target import read_target

    wanted: dict[str, Any] = {
        "overrides": options.overrides,
        "run_dir": options.run_dir,
        "trust": options.trust,
    }
    target = options.target
    if not follows():  # a rank's driver asks and reads
        target, wanted = read_target(target, **wanted), {}
        options.written = target.config  # before this machine chooses a precision
        name = "demo" if options.target == DEMO else options.target
        _say(f"{name}: loading PyTorch, then the tokenizer")
    let_segments_grow()
    from mugrpo.processes.ranks import joined
    from mugrpo.run.opening import open_run

    with (
        joined() as ranks,
        open_run(
            target,
            **wanted,
            force=options.force,
            progress=Progress(shown=ranks.first),
            stop=options.stop,
            ranks=ranks,
            apart=apart,
        ) as run,
    ):
        options.stop.check()
        launched = None if ranks.follows else launched_ranks()
        yield run.with_ranks(int(launched["WORLD_SIZE"])) if launched else run
