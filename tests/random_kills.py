"""Kill a run at random moments, resume it, and compare every bit with an uninterrupted run.

    python -m tests.random_kills --kills 50 [--seed 0]

Moments are uniform over the time that a whole run takes, start-up included. Each process is a fresh
command line. A run is killed several times, then left to finish and compared. Only kills that ended
a process count. The exit status is 1 if a single bit differs or too few kills came about.
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


class Command:
    """The command `mugrpo train` into one directory, which can be run repeatedly."""

    def __init__(self, run_dir: Path, config: Path) -> None:
        self.run_dir = run_dir
        self.words = [sys.executable, "-m", "mugrpo", "train", str(config)]
        self.words += ["--run-dir", str(run_dir)]

    def run(self, seconds: float | None = None) -> tuple[int, str]:
        """Return its exit status and last line of output. Kill it after `seconds` at the latest."""
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
                process.send_signal(signal.SIGKILL)
                process.wait()
            output.seek(0)
            lines = output.read().splitlines()
        return process.returncode, lines[-1] if lines else "(no output yet)"


def kill_and_resume(
    command: Command, wanted: int, duration: float, chance: random.Random
) -> list[str]:
    """Kill `command` up to `wanted` times, then let it finish. Return a line for each kill."""
    kills: list[str] = []
    while len(kills) < wanted:
        moment = chance.uniform(0, duration)
        status, said = command.run(moment)
        if status == 0:
            return kills
        if status != -signal.SIGKILL:
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
        status, said = Command(reference, config).run()
        duration = time.monotonic() - began
        if status != 0:
            raise SystemExit(f"the uninterrupted run: exit status {status}: {said}")
        print(f"an uninterrupted run takes {duration:.1f} s", flush=True)
        for number in range(options.kills * 10):
            if kills == options.kills:
                break
            run_dir = root / f"{number:03d}"
            wanted = min(KILLS_PER_RUN, options.kills - kills)
            lines = kill_and_resume(Command(run_dir, config), wanted, duration, chance)
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
