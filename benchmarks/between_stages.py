"""Ranks that stay against ranks that end: `python benchmarks/between_stages.py`.

Each side is a run of SmolLM2-135M with an engine process and two ranks (gloo) on two cores, in
stages of four updates. Measured is the time from the last update of a stage to the first one of the
next, without generation, scoring and that first update itself. It includes the checkpoint as far as
it is waited for, the refresh and its canary. One side makes no checkpoint there: its ranks hand the
model alone over. The notes have what checkpoints or models cost the updates, and the peak memory of
the process that drives the run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from side_by_side import ROOT, Measured, Ratio, Row, alternate, parser, publish

STAY, END = "ranks that stay", "ranks that end after each stage"
MODEL = "ranks that stay, without a checkpoint"
STAGES = 6  # the first two times, new files are slow to write: no memory has been freed yet


def main(argv: Sequence[str] | None = None) -> Any:
    options = parser(__doc__).parse_args(argv)
    sides = {
        STAY: lambda _: measured(),
        MODEL: lambda _: measured("--checkpoint.stage_end", "false"),
        END: lambda _: measured("--distributed.rest", "end"),
    }
    results = alternate(sides, options.repetitions)
    ratios = [
        Ratio(STAY, END, "Between stages, two ranks, against ranks that end", kind="own"),
        Ratio(MODEL, END, "The same without a checkpoint, against ranks that end", kind="own"),
    ]
    row = Row(
        "between_stages",
        "From one stage to the next, SmolLM2-135M, two ranks",
        "times/s",
        results,
        ratios,
        {"stages": STAGES},
        options.tiny,
    )
    return publish(row, options.output)


def measured(*options: str) -> Measured:
    """Make one run with `options`. Return the median time between its stages."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        words = [sys.executable, "-m", "mugrpo", "train", "configs/smollm2_addition.toml"]
        words += ["--run-dir", str(run_dir), "--evaluation.every", "0", "--samples.every", "0"]
        words += ["--schedule.stages", str(STAGES), "--schedule.batches_per_stage", "4"]
        words += ["--checkpoint.keep", "1"]
        words += ["--engine.processes", "1", "--distributed.processes", "2"]
        words += options
        with open(Path(folder) / "log", "w") as log:
            process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)
        seen: list[tuple[float, dict[str, Any]]] = []
        peak = 0
        while process.poll() is None:
            peak = max(peak, peak_memory(process.pid))
            for line in lines(run_dir / "metrics.jsonl")[len(seen) :]:
                seen.append((time.monotonic(), line))
            time.sleep(0.02)
        if process.returncode:
            raise SystemExit((Path(folder) / "log").read_text())
    gaps = between(seen)
    notes = {
        "between": gaps,
        "checkpoints": [u["time/checkpoint"] for _, u in seen if u["kind"] == "update"],
        "driver_bytes": peak,
    }
    return Measured(statistics.median(gaps), notes=notes)


def between(seen: Sequence[tuple[float, dict[str, Any]]]) -> list[float]:
    """Return the seconds between the stages, without generation, scoring and the first update."""
    updates = [(at, line) for at, line in seen if line["kind"] == "update"]
    refreshes = {line["stage"]: line for _, line in seen if line["kind"] == "refresh"}
    gaps = []
    for (before, last), (after, first) in pairwise(updates):
        if last["stage"] != first["stage"]:
            refresh = refreshes[first["stage"]]
            work = refresh["time/generate"] + refresh["time/score"] + first["time/update"]
            gaps.append(after - before - work)
    return gaps


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a metrics file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def peak_memory(pid: int) -> int:
    """Return a process's peak resident memory in bytes, or 0 if it has ended."""
    try:
        words = Path(f"/proc/{pid}/status").read_text().split()
    except OSError:
        return 0
    return 1024 * int(words[words.index("VmHWM:") + 1]) if "VmHWM:" in words else 0


if __name__ == "__main__":
    main()
