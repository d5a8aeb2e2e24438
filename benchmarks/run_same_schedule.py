"""A whole run of the same schedule, against TRL: `python benchmarks/run_same_schedule.py`.

GRPO with mu = 4 on the embedded task: `mugrpo train` under preset grpo, and TRL's GRPOTrainer with
the same model, problems in the same order, verifier, batch of 16 problems x 8 responses, lengths,
objective and learning rate; four updates share one generation. No evaluation, no logging. Each side
is a process of its own; the clock begins behind its imports, and the whole process is reported too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outcomes import engine_overrides, quiet, run_process
from side_by_side import ROOT, Measured, Ratio, Row, alternate, parser, publish
from workloads import add_engine_options

OURS, PEER = "mugrpo", "TRL"


def main(given: Sequence[str] | None = None) -> Any:
    made = parser(__doc__)
    add_engine_options(made)
    made.add_argument("--updates", type=int, default=32)
    made.add_argument("--trl-batch", type=int, help="TRL's responses at a time (default: all)")
    options = made.parse_args(given)
    if options.tiny:
        options.updates, options.repetitions = 4, 1
    problems, size = (2, 2) if options.tiny else (16, 8)
    config = ROOT / "configs" / "demo_grpo.toml"
    overrides = [*quiet(options.updates, 4, problems, size), "--checkpoint.every=0"]
    overrides += engine_overrides(options)
    more = ["--trl-batch", str(options.trl_batch)] if options.trl_batch else []

    def side(name: str, extra: Sequence[str] = ()) -> Measured:
        outcome = run_process(name, config, overrides, extra)
        notes = {"process_seconds": outcome.process_seconds, "phases": outcome.phases}
        return Measured(outcome.seconds, options.updates, notes)

    sides = {OURS: lambda _: side("mugrpo"), PEER: lambda _: side("trl", more)}
    found = alternate(sides, options.repetitions)
    for name in (OURS, PEER):
        whole = [Measured(m.notes["process_seconds"], m.work) for m in found[name]]
        found[f"{name}, with imports"] = whole
    title = "Whole run, GRPO with mu = 4, embedded task"
    with_imports = [f"{name}, with imports" for name in (OURS, PEER)]
    ratios = [
        Ratio(OURS, PEER, f"{title}, against TRL", 4.0),
        Ratio(*with_imports, f"{title}, with imports, against TRL"),
    ]
    details = {"updates": options.updates, "overrides": overrides, "trl_batch": options.trl_batch}
    row = Row("run_same_schedule", title, "updates/s", found, ratios, details, options.tiny)
    return publish(row, options.output)


if __name__ == "__main__":
    main()
