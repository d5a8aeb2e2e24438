"""Kill a run at random moments, resume it, and compare every bit with an uninterrupted run.

    python -m tests.random_kills --kills 50 [--seed 0] [--several]

Moments are uniform over the time that a whole run takes, start-up included. Each process is a fresh
command line. A run is killed several times, then left to finish and compared. Only kills that ended
a process count. The exit status is 1 if a single bit differs or too few kills came about.

With `--several`, an engine process and two ranks work for the run, and each kill is of the run
itself or of one of these. A run may survive the loss of its engine.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.runs import CONFIG, ENVIRONMENT, differences, write_config

KILLS_PER_RUN = 5
# Three stages of 40 updates, longer than the tests' run, so that few moments are in the imports.
LONGER = {
    "stages = 2": "stages = 3",
    "batches_per_stage = 3": "batches_per_stage = 40",
    "[checkpoint]\nevery = 2": "[checkpoint]\nevery = 7\nkeep = 2",
    "beside_training = false": "beside_training = true",
}
UPDATES = 120
LOST = 3  # the status of a run that has lost a rank


SEVERAL = ("--engine.processes", "1", "--distributed.processes", "2")


class Command:
    """The command `mugrpo train` into one directory, which can be run repeatedly."""

    def __init__(self, run_dir: Path, config: Path, options: Sequence[str]) -> None:
        self.run_dir = run_dir
        self.words = [sys.executable, "-m", "mugrpo", "train", str(config)]
        self.words += ["--run-dir", str(run_dir), *options]

    def run(
        self, seconds: float | None = None, chance: random.Random | None = None
    ) -> tuple[int, str]:
        """Return its exit status and last line of output. Kill it after `seconds` at the latest.

        With `chance`, kill it or one of the processes that it has started.
        """
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                self.words,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT},
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                victims = [process.pid, *(started_by(process.pid) if chance else ())]
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(victims) if chance else process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            lines = output.read().splitlines()
        return process.returncode, lines[-1] if lines else "(no output yet)"


def started_by(pid: int) -> list[int]:
    """Return the engines and ranks of the run with this process id: what runs Python for it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(") ")[2].split()[1])
    found, family = [], {pid}
    while fresh := {child for child, parent in parents.items() if parent in family} - family:
        family |= fresh
        found += sorted(fresh)
    return found


def kill_and_resume(
    command: Command, wanted: int, duration: float, chance: random.Random, *, several: bool
) -> list[str]:
    """Kill `command` up to `wanted` times, then let it finish. Return a line for each kill."""
    kills: list[str] = []
    while len(kills) < wanted:
        moment = chance.uniform(0, duration)
        status, said = command.run(moment, chance if several else None)
        if status == 0:
            return kills
        if status != -signal.SIGKILL and not (several and status == LOST):
            raise SystemExit(f"{command.run_dir}: exit status {status}: {said}")
        kills.append(f"killed after {moment:5.2f} s: {said}")
    status, said = command.run()
    if status != 0:
        raise SystemExit(f"{command.run_dir}: exit status {status} at the end: {said}")
    return kills


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kill runs at random moments and compare bits.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--several", action="store_true")
    options = parser.parse_args(arguments)
    chance = random.Random(options.seed)
    text = CONFIG
    for old, new in LONGER.items():
        assert old in text
        text = text.replace(old, new)
    kills = identical = 0
    with tempfile.TemporaryDirectory(prefix="random-kills-") as folder:
        root = Path(folder)
        config, reference = write_config(root, text), root / "reference"
        began = time.monotonic()
        more = SEVERAL if options.several else ()
        status, said = Command(reference, config, more).run()
        duration = time.monotonic() - began
        if status != 0:
            raise SystemExit(f"the uninterrupted run: exit status {status}: {said}")
        print(f"an uninterrupted run takes {duration:.1f} s", flush=True)
        for number in range(options.kills * 10):
            if kills == options.kills:
                break
            run_dir = root / f"{number:03d}"
            wanted = min(KILLS_PER_RUN, options.kills - kills)
            lines = kill_and_resume(
                Command(run_dir, config, more), wanted, duration, chance, several=options.several
            )
            for line in lines:
                kills += 1
                print(f"{kills:3d}  {line}", flush=True)
            differing = differences(run_dir, reference, UPDATES)
            for difference in differing:
                print(f"{run_dir.name} differs: {difference}", flush=True)
            identical += 0 if differing else len(lines)
            shutil.rmtree(run_dir)
    print(f"{kills} kills, {identical} resumed to identical bits")
    return 0 if kills == identical == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
