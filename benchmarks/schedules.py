"""Mu-GRPO against our own GRPO: `python benchmarks/schedules.py --model chain|smollm2`.

Both sides make the same number of updates of the same size. Mu-GRPO generates a few times, GRPO
(mu = 4) every four updates. Each side is `mugrpo train` in its own process, with the engine in the
trainer's process. Loading is within the clock and imports are not. Nothing is evaluated. The notes
say where the time went, from metrics.jsonl: refresh, generate, score, optimize, checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mugrpo.arguments import DEMO
from outcomes import engine_overrides, quiet, run_process
from side_by_side import ROOT, Measured, Ratio, Row, alternate, parser, publish
from workloads import add_engine_options

MU, GRPO = "Mu-GRPO", "GRPO, mu = 4"
MODELS = {  # config, updates, updates per stage of Mu-GRPO, problems, group size
    "chain": (DEMO, 256, 64, 16, 8),
    "smollm2": (ROOT / "configs" / "smollm2_addition.toml", 24, 8, 8, 8),
}
NAMES = {"chain": "embedded model", "smollm2": "SmolLM2-135M"}


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__)
    add_engine_options(cli)
    cli.add_argument("--model", choices=sorted(MODELS), default="chain")
    cli.add_argument("--updates", type=int, help="updates of each run")
    options = cli.parse_args(argv)
    config, updates, per_stage, problems, size = MODELS[options.model]
    updates = options.updates or updates
    if options.tiny:
        updates, per_stage, problems, size, options.repetitions = 8, 8, 2, 2, 1

    def side(preset: str, stage: int) -> Measured:
        overrides = [f"--preset={preset}", *quiet(updates, stage, problems, size)]
        overrides += engine_overrides(options)
        outcome = run_process("mugrpo", config, overrides)
        return Measured(outcome.seconds, updates, {"phases": outcome.phases})

    sides = {MU: lambda _: side("mu-grpo", per_stage), GRPO: lambda _: side("grpo", 4)}
    results = alternate(sides, options.repetitions)
    title = f"Mu-GRPO, same updates, {NAMES[options.model]}"
    details = {"updates": updates, "updates_per_stage": per_stage, "config": config.name}
    ratios = [Ratio(MU, GRPO, f"{title}, against our GRPO")]
    name = f"schedules_{options.model}"
    row = Row(name, title, "updates/s", results, ratios, details, options.tiny)
    document = publish(row, options.output)
    print(where_the_time_goes(document["sides"]))
    return document


def where_the_time_goes(sides: Any) -> str:
    """Return the seconds by phase in the first repetition of each side."""
    lines = []
    for name, side in sides.items():
        phases = side["notes"][0]["phases"]
        text = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in phases.items() if seconds)
        other = side["seconds"]["values"][0] - sum(phases.values())
        lines.append(f"{name}: {text}, loading and the rest {other:.1f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
