"""The time that overlap saves: `python benchmarks/overlap.py`, on a machine with two cores.

The demo's method trains on the embedded task in 4 stages of 32 batches. The first side overlaps the
engine and the trainer, and the second runs them in turn. On both, the engine has its own process,
and each of the two has one thread, so the ratio is the gain with two equal pools of machines. The
third side is a single machine without pools: the engine is in the trainer's process, and each uses
all cores in turn. A side's clock starts after the imports of its process. Nothing is evaluated.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from unittest import mock

from mugrpo.arguments import DEMO
from outcomes import quiet, run_process
from side_by_side import Measured, Ratio, Row, alternate, parser, publish

OVERLAPPED, SEQUENTIAL, TOGETHER = "overlap", "one after the other", "in one process, all cores"
POOLS = ["--engine.processes=1", "--engine.threads=1"]


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__)
    cli.add_argument("--stages", type=int, default=4)
    cli.add_argument("--batches", type=int, default=32, help="batches per stage")
    options = cli.parse_args(argv)
    if options.tiny:
        options.stages, options.batches, options.repetitions = 1, 2, 1
    problems, size = (2, 2) if options.tiny else (16, 8)
    updates = options.stages * options.batches
    shard = f"--rollouts.shard_rollouts={2 * problems * size}"  # two batches
    overrides = [*quiet(updates, options.batches, problems, size), shard]

    def side(more: Sequence[str], threads: str | None) -> Measured:
        environment = {"OMP_NUM_THREADS": threads} if threads else {}
        with mock.patch.dict(os.environ, environment):
            outcome = run_process("mugrpo", DEMO, [*overrides, *more])
        return Measured(outcome.seconds, updates, {"phases": outcome.phases})

    sides = {
        OVERLAPPED: lambda _: side([*POOLS, "--overlap=true"], "1"),
        SEQUENTIAL: lambda _: side(POOLS, "1"),
        TOGETHER: lambda _: side([], None),
    }
    results = alternate(sides, options.repetitions)
    title = "Overlap, embedded task, a thread each"
    ratios = [
        Ratio(OVERLAPPED, SEQUENTIAL, f"{title}, against the same in turn"),
        Ratio(OVERLAPPED, TOGETHER, f"{title}, against both cores in turn"),
    ]
    details = {"updates": updates, "overrides": overrides}
    row = Row("overlap", title, "updates/s", results, ratios, details, options.tiny)
    return publish(row, options.output)


if __name__ == "__main__":
    main()
