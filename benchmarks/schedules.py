"""Mu-GRPO against our own GRPO: `python benchmarks/schedules.py --model chain|smollm2`.

The same number of updates of the same batch; Mu-GRPO generates a few times, GRPO (mu = 4) every
four updates. Both are `mugrpo train` in processes of their own, refreshed in process; loading is
within the clock, imports are not, nothing is evaluated. The notes say where the time went, from
metrics.jsonl: refresh, generate, score, optimize, checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outcomes import engine_overrides, quiet, run_process
from side_by_side import ROOT, Measured, Ratio, Row, alternate, parser, publish
from workloads import add_engine_options

MU, GRPO = "Mu-GRPO", "GRPO, mu = 4"
MODELS = {  # config, updates, updates a stage of Mu-GRPO, problems, group size
    "chain": ("demo.toml", 256, 64, 16, 8),
    "smollm2": ("smollm2_addition.toml", 24, 8, 8, 8),
}
NAMES = {"chain": "embedded model", "smollm2": "SmolLM2-135M"}


def main(given: Sequence[str] | None = None) -> Any:
    made = parser(__doc__)
    add_engine_options(made)
    made.add_argument("--model", choices=sorted(MODELS), default="chain")
    made.add_argument("--updates", type=int, help="of each run")
    options = made.parse_args(given)
    config, updates, per_stage, problems, size = MODELS[options.model]
    updates = options.updates or updates
    if options.tiny:
        updates, per_stage, problems, size, options.repetitions = 8, 8, 2, 2, 1

    def side(preset: str, stage: int) -> Measured:
        overrides = [f"--preset={preset}", *quiet(updates, stage, problems, size)]
        overrides += engine_overrides(options)
        outcome = run_process("mugrpo", ROOT / "configs" / config, overrides)
        return Measured(outcome.seconds, updates, {"phases": outcome.phases})

    sides = {MU: lambda _: side("mu-grpo", per_stage), GRPO: lambda _: side("grpo", 4)}
    found = alternate(sides, options.repetitions)
    title = f"Mu-GRPO, same updates, {NAMES[options.model]}"
    details = {"updates": updates, "updates_per_stage": per_stage, "config": config}
    ratios = [Ratio(MU, GRPO, f"{title}, against our GRPO")]
    name = f"schedules_{options.model}"
    row = Row(name, title, "updates/s", found, ratios, details, options.tiny)
    document = publish(row, options.output)
    print(where_the_time_goes(document["sides"]))
    return document


def where_the_time_goes(sides: Any) -> str:
    """Seconds by phase, of the first repetition of each side."""
    lines = []
    for name, side in sides.items():
        phases = side["notes"][0]["phases"]
        text = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in phases.items() if seconds)
        other = side["seconds"]["values"][0] - sum(phases.values())
        lines.append(f"{name}: {text}, loading and the rest {other:.1f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
