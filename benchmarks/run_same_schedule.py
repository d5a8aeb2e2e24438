"""A whole run with the same schedule, against TRL: `python benchmarks/run_same_schedule.py`.

Both sides run GRPO with mu = 4 on the embedded task: `mugrpo train` with preset grpo, and TRL's
GRPOTrainer with the same model, problems in the same order, verifier, batch of 16 problems x 8
responses, lengths, objective and learning rate. Four updates share one generation. There is no
evaluation and no logging. TRL's micro-batch size is the fastest of three, which are tried before
the measurement. Each side is a process whose clock starts after its imports. The time of the whole
process is reported too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outcomes import engine_overrides, precision_overrides, quiet, run_process
from side_by_side import ROOT, Measured, Ratio, Row, alternate, parser, publish
from workloads import add_engine_options, add_precision

OURS, PEER = "mugrpo", "TRL"


def fastest_batch(config: Path, overrides: Sequence[str], whole: int) -> int:
    """Return the responses per micro-batch (all, half, a quarter) with which TRL is fastest."""
    seconds = {}
    for batch in (whole, whole // 2, whole // 4):
        outcome = run_process("trl", config, overrides, ["--trl-batch", str(batch)])
        seconds[batch] = outcome.seconds
        print(f"TRL with {batch} responses per micro-batch: {outcome.seconds:.2f} s", flush=True)
    return min(seconds, key=lambda batch: seconds[batch])


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__)
    add_engine_options(cli)
    add_precision(cli)
    cli.add_argument("--updates", type=int, default=32)
    cli.add_argument(
        "--trl-batch", type=int, help="TRL's responses per micro-batch (default: the fastest)"
    )
    options = cli.parse_args(argv)
    if options.tiny:
        options.updates, options.repetitions = 4, 1
    problems, size = (2, 2) if options.tiny else (16, 8)
    config = ROOT / "configs" / "demo_grpo.toml"
    other = ["--checkpoint.every=0", *engine_overrides(options), *precision_overrides(options)]
    overrides = [*quiet(options.updates, 4, problems, size), *other]
    if not (options.tiny or options.trl_batch):
        four = [*quiet(4, 4, problems, size), *other]
        options.trl_batch = fastest_batch(config, four, problems * size)
    more = ["--trl-batch", str(options.trl_batch or problems * size)]

    def side(name: str, extra: Sequence[str] = ()) -> Measured:
        outcome = run_process(name, config, overrides, extra)
        notes = {"process_seconds": outcome.process_seconds, "phases": outcome.phases}
        return Measured(outcome.seconds, options.updates, notes)

    sides = {OURS: lambda _: side("mugrpo"), PEER: lambda _: side("trl", more)}
    results = alternate(sides, options.repetitions)
    for name in (OURS, PEER):
        whole = [Measured(m.notes["process_seconds"], m.work) for m in results[name]]
        results[f"{name}, with imports"] = whole
    title = "Whole run, GRPO with mu = 4, embedded task"
    name = "run_same_schedule"
    if options.precision:
        title, name = f"{title}, {options.precision}", f"{name}_{options.precision}"
    with_imports = [f"{name}, with imports" for name in (OURS, PEER)]
    ratios = [
        Ratio(OURS, PEER, f"{title}, against TRL", 4.0),
        Ratio(*with_imports, f"{title}, with imports, against TRL"),
    ]
    details = {"updates": options.updates, "overrides": overrides, "trl_batch": options.trl_batch}
    row = Row(name, title, "updates/s", results, ratios, details, options.tiny)
    return publish(row, options.output)


if __name__ == "__main__":
    main()
