"""Time per update in a long stage and in short ones: `python benchmarks/stage_length.py`.

The demo's method trains the embedded model with 4 problems x 4 responses per update, in one stage
of 1024 updates and in stages of 4 updates. The learning rate is almost 0, so the responses of all
stages are alike. An update's time includes reading its rollouts. The first updates of a process,
generation and loading are left out. The notes have the median of the first and the last hundred
updates.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from mugrpo.arguments import DEMO
from outcomes import engine_overrides, quiet, run_process
from side_by_side import Measured, Ratio, Row, alternate, parser, publish
from workloads import add_engine_options

LONG, SHORT = "one long stage", "stages of 4 updates"
WARM_UP = 8  # updates


def per_update(seconds: Sequence[float]) -> Measured:
    """Return the number of updates and their seconds, without the first `WARM_UP`."""
    kept = seconds[WARM_UP:] or seconds
    part = max(1, min(100, len(kept) // 2))
    notes = {
        "median": statistics.median(kept),
        "first": statistics.median(kept[:part]),
        "last": statistics.median(kept[-part:]),
    }
    return Measured(sum(kept), len(kept), notes)


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__)
    add_engine_options(cli)
    cli.add_argument("--long", type=int, default=1024, help="updates of the long stage")
    cli.add_argument("--short-updates", type=int, default=128, help="total updates in stages of 4")
    options = cli.parse_args(argv)
    problems, size = 4, 4
    if options.tiny:
        options.long, options.short_updates, options.repetitions = 16, 8, 1
        problems, size = 2, 2

    def side(updates: int, per_stage: int) -> Measured:
        overrides = [*quiet(updates, per_stage, problems, size), "--optimizer.lr=1e-9"]
        overrides += ["--checkpoint.stage_end=false", *engine_overrides(options)]
        outcome = run_process("mugrpo", DEMO, overrides)
        return per_update(outcome.update_seconds)

    sides = {
        LONG: lambda _: side(options.long, options.long),
        SHORT: lambda _: side(options.short_updates, 4),
    }
    results = alternate(sides, options.repetitions)
    title = f"Updates/s in a stage of {options.long}"
    ratios = [Ratio(LONG, SHORT, f"{title}, against stages of 4", 0.9)]
    details = {"long": options.long, "short_updates": options.short_updates}
    row = Row("stage_length", title, "updates/s", results, ratios, details, options.tiny)
    return publish(row, options.output)


if __name__ == "__main__":
    main()
