"""A whole run to the same accuracy, against TRL: `python benchmarks/run_to_accuracy.py`.

Both sides train on the embedded task. Our side is `mugrpo demo`, in four stages that grow.
TRL's side is GRPO with mu = 4 and configs/demo_grpo.toml. Number of updates, batch, learning rate
and held-out problems are equal. The accuracy to reach is the one at the end of TRL's run, and TRL's
time is that of its first evaluation that reaches it. The speeds to accuracies 0.8 and 0.9 are
compared too, if all runs reach them. Each repetition has another seed. Evaluations, which are the
same on both sides, and imports are outside the clock. A ratio of 0 means that our run did not reach
the accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mugrpo.arguments import DEMO
from outcomes import Outcome, engine_overrides, precision_overrides, run_process
from side_by_side import ROOT, Measured, Ratio, Row, alternate, parser, publish
from workloads import add_engine_options, add_precision

OURS, PEER = "mugrpo", "TRL"
LEVELS = (0.8, 0.9)
TITLE = "Whole run to the same accuracy, the demo"


def to_level(outcomes: Sequence[Outcome], levels: Sequence[float]) -> list[Measured]:
    """Return each repetition's seconds to its level. The work is 0 if the level is not reached."""
    measured = []
    for outcome, level in zip(outcomes, levels, strict=True):
        seconds = outcome.seconds_to(level)
        reached = seconds is not None
        notes = {"accuracy": level, "curve": outcome.evaluations, "phases": outcome.phases}
        measured.append(Measured(seconds or outcome.seconds, float(reached), notes))
    return measured


def row(outcomes: dict[str, list[Outcome]], details: dict[str, Any], tiny: bool) -> Row:
    """Return the row of the times to TRL's last accuracy, and to the levels that all runs reach."""
    ends = [outcome.last_accuracy for outcome in outcomes[PEER]]
    results = {name: to_level(outcomes[name], ends) for name in (OURS, PEER)}
    ratios = [Ratio(OURS, PEER, f"{TITLE}, against TRL's GRPO", 3.0)]
    reached: dict[str, list[Any]] = {}
    for level in LEVELS:
        levels = [level] * len(ends)
        timed = {name: to_level(outcomes[name], levels) for name in (OURS, PEER)}
        for name, values in timed.items():
            reached[f"{name} to {level}"] = [m.seconds if m.work else None for m in values]
        if all(m.work for values in timed.values() for m in values):
            names = [f"{name} to {level}" for name in (OURS, PEER)]
            results |= dict(zip(names, timed.values(), strict=True))
            ratios.append(Ratio(*names, f"Whole run to {level}, the demo, against TRL's GRPO"))
    details = {**details, "seconds_to": reached, "accuracy_to_reach": ends}
    return Row("run_to_accuracy", TITLE, "runs/s", results, ratios, details, tiny)


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__)
    add_engine_options(cli)
    add_precision(cli)
    cli.add_argument("--every", type=int, default=16, help="updates between evaluations")
    cli.add_argument("--trl-batch", type=int, help="TRL's responses per micro-batch (default: all)")
    options = cli.parse_args(argv)
    more = [f"--evaluation.every={options.every}", "--samples.every=0", "--checkpoint.every=0"]
    if options.tiny:
        options.repetitions = 1
        more = ["--evaluation.every=2", "--samples.every=0", "--checkpoint.every=0"]
        more += ["--task.eval_problems=8", "--rollouts.max_new_tokens=42"]
        more += ["--schedule.problems_per_update=2", "--schedule.group_size=2"]
        more += ["--schedule.stages=1", "--schedule.batches_per_stage=4"]
    more += [*engine_overrides(options), *precision_overrides(options)]
    outcomes: dict[str, list[Outcome]] = {OURS: [], PEER: []}

    def side(name: str, config: Path, repetition: int) -> Measured:
        kind = "mugrpo" if name == OURS else "trl"
        batch = ["--trl-batch", str(options.trl_batch)] if options.trl_batch else []
        seeded = [f"--seed={repetition}", *more]
        outcome = run_process(kind, config, seeded, batch if kind == "trl" else [])
        outcomes[name].append(outcome)
        return Measured(outcome.seconds)

    sides = {
        OURS: lambda repetition: side(OURS, DEMO, repetition),
        PEER: lambda repetition: side(PEER, ROOT / "configs" / "demo_grpo.toml", repetition),
    }
    alternate(sides, options.repetitions)
    details = {"overrides": more}
    measured = row(outcomes, details, options.tiny)
    if options.precision:
        measured = replace(measured, name=f"{measured.name}_{options.precision}")
    return publish(measured, options.output)


if __name__ == "__main__":
    main()
