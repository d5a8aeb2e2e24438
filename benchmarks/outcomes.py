"""The outcome of a whole training run in its own process, and how to start that process."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from side_by_side import ROOT

SCRIPT = Path(__file__).with_name("whole_run.py")


@dataclass
class Outcome:
    """The outcome of a run. Its seconds exclude evaluations, except `aside` and `phases`."""

    began: float = field(default_factory=time.perf_counter)
    aside: float = 0.0  # seconds spent on evaluations
    seconds: float = 0.0  # from the end of the imports to the end of the run
    process_seconds: float = 0.0  # of the whole process, set by its parent
    evaluations: list[dict[str, float]] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    update_seconds: list[float] = field(default_factory=list)  # of our runs: reading and updating

    def evaluated(self, update: int, accuracy: float, spent: float) -> None:
        """Record an evaluation that has just ended and took `spent` seconds."""
        self.aside += spent
        seconds = time.perf_counter() - self.began - self.aside
        self.evaluations.append({"update": update, "seconds": seconds, "accuracy": accuracy})

    def ended(self) -> None:
        self.seconds = time.perf_counter() - self.began - self.aside

    @property
    def last_accuracy(self) -> float:
        return self.evaluations[-1]["accuracy"]

    def seconds_to(self, accuracy: float) -> float | None:
        """Return the training seconds until an evaluation reached `accuracy`, or None."""
        reached = (e["seconds"] for e in self.evaluations if e["accuracy"] >= accuracy)
        return next(reached, None)


def run_process(
    side: str, config: Path, overrides: Sequence[str], more: Sequence[str] = ()
) -> Outcome:
    """Run "mugrpo" or "trl" with a config in its own process and return the outcome.

    Raises SystemExit if the run fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcome.json"
        command = [sys.executable, str(SCRIPT), side, str(out), str(config)]
        command += ["--run-dir", str(Path(folder) / "run"), *more, *overrides]
        began = time.perf_counter()
        ended = subprocess.run(command, stdout=sys.stderr, cwd=ROOT, check=False)
        seconds = time.perf_counter() - began
        if ended.returncode:
            raise SystemExit(f"the {side} run ended with status {ended.returncode}")
        outcome = Outcome(**json.loads(out.read_text()))
    outcome.process_seconds = seconds - outcome.aside
    return outcome


def quiet(updates: int, per_stage: int, problems: int, group_size: int) -> list[str]:
    """Return overrides for `updates` updates without evaluations or samples."""
    stages, rest = divmod(updates, per_stage)
    assert not rest, f"{updates} updates are not a multiple of {per_stage}"
    schedule = {
        "stages": stages,
        "batches_per_stage": per_stage,
        "growth": 1,
        "problems_per_update": problems,
        "group_size": group_size,
    }
    return [
        *(f"--schedule.{name}={value}" for name, value in schedule.items()),
        "--evaluation.every=0",
        "--samples.every=0",
    ]


def engine_overrides(options: argparse.Namespace) -> list[str]:
    """Return `--engine` and `--engine-option` as overrides of a config."""
    named = [f"--engine.name={options.engine}"] if options.engine else []
    return [*named, *(f"--engine.{option}" for option in options.engine_option)]


def precision_overrides(options: argparse.Namespace) -> list[str]:
    """Return `--precision` as an override of a config."""
    return [f"--model.precision={options.precision}"] if options.precision else []
