"""`mugrpo watch` and `mugrpo report`: a run that goes on, seen from its files."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mugrpo.disk.errors import UsageError

_TICK = 0.1  # seconds between looks at whether to stop


def run_watch(options: argparse.Namespace) -> None:
    """Show the run on a terminal until it ends or a signal comes, then print its state."""
    from rich.console import Console

    from mugrpo.run.follower import Follower, draw, plain
    from mugrpo.run.progress import live_page, on_terminal

    console = Console(file=sys.stdout)
    follower = Follower(options.target)
    state = follower.state()
    if state.running and on_terminal(console) and not options.once:
        live = live_page(lambda: draw(state), console)
        try:
            while state.running and not options.stop.signal_name:
                state = follower.state()
                time.sleep(_TICK * 5)
        finally:
            live.stop()
    options.say(plain(state, console.width))


def run_report(options: argparse.Namespace) -> None:
    """Write the report, again and again if `--every` asks for it.

    The last page, after the runs' end or a signal, no longer asks to be loaded again.
    """
    from mugrpo.report import write_report

    every, stop = options.every, options.stop
    if every is not None and every < 1:
        raise UsageError(f"--every {every}: name at least one second")
    going = every is not None and _any_runs(options.targets)
    path = write_report(options.targets, options.out, every if going else None)
    options.say(path)
    while going:
        end = time.monotonic() + every
        while time.monotonic() < end and not stop.signal_name:
            time.sleep(_TICK)
        going = _any_runs(options.targets) and not stop.signal_name
        write_report(options.targets, options.out, every if going else None)


def _any_runs(runs: Sequence[Path]) -> bool:
    from mugrpo.run.follower import Follower

    return any(Follower(run).state().running for run in runs)
