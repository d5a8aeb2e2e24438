"""What overlap saves: `python benchmarks/overlap.py`, on a machine with two cores.

Mu-GRPO on the embedded task, 4 stages of 32 batches, the engine in a process of its own. With
overlap, and one after the other: engine and trainer have one thread each in both, so that the
figure is what two pools of equal machines gain. The third side is what a single machine would do
without pools: the engine in the trainer's process, every core for each half in turn. Each side is
a process of its own; the clock begins behind its imports. No evaluation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from unittest import mock

from outcomes import quiet, run_process
from side_by_side import ROOT, Measured, Ratio, Row, alternate, parser, publish

OVERLAPPED, SEQUENTIAL, TOGETHER = "overlap", "one after the other", "in one process, all cores"
POOLS = ["--engine.processes=1", "--engine.threads=1"]


def main(given: Sequence[str] | None = None) -> Any:
    made = parser(__doc__)
    made.add_argument("--stages", type=int, default=4)
    made.add_argument("--batches", type=int, default=32, help="in a stage")
    options = made.parse_args(given)
    if options.tiny:
        options.stages, options.batches, options.repetitions = 1, 2, 1
    problems, size = (2, 2) if options.tiny else (16, 8)
    config = ROOT / "configs" / "demo.toml"
    updates = options.stages * options.batches
    shard = f"--rollouts.shard_rollouts={2 * problems * size}"  # two batches
    overrides = [*quiet(updates, options.batches, problems, size), shard]

    def side(more: Sequence[str], threads: str | None) -> Measured:
        environment = {"OMP_NUM_THREADS": threads} if threads else {}
        with mock.patch.dict(os.environ, environment):
            outcome = run_process("mugrpo", config, [*overrides, *more])
        return Measured(outcome.seconds, updates, {"phases": outcome.phases})

    sides = {
        OVERLAPPED: lambda _: side([*POOLS, "--overlap=true"], "1"),
        SEQUENTIAL: lambda _: side(POOLS, "1"),
        TOGETHER: lambda _: side([], None),
    }
    found = alternate(sides, options.repetitions)
    title = "Overlap, embedded task, a thread each"
    ratios = [
        Ratio(OVERLAPPED, SEQUENTIAL, f"{title}, against the same in turn"),
        Ratio(OVERLAPPED, TOGETHER, f"{title}, against both cores in turn"),
    ]
    details = {"updates": updates, "overrides": overrides}
    row = Row("overlap", title, "updates/s", found, ratios, details, options.tiny)
    return publish(row, options.output)


if __name__ == "__main__":
    main()
