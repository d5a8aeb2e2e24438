"""What a run has measured, for plans of other schedules, and how far a plan is off."""

from __future__ import annotations

from dataclasses import replace

from mugrpo.report.costs import phase_seconds, spans
from mugrpo.report.read import RunData, number
from mugrpo.tools.plan.schedules import Planned, Planner
from mugrpo.tools.plan.setting import Measured, Setting


def measured_by(run: RunData, setting: Setting) -> Measured:
    """Return what a run has measured, relative to what `setting` computes for it.

    Its stages' generation and updates are computed with its own lengths, so that the factors are
    those of the machine and not of the schedule. Raises UsageError if the model fits nowhere.
    """
    varied = {
        line["update"]: 1.0 - share
        for line in run.refreshes
        if (share := number(line, "zero_variance_share")) is not None
    }
    devices, seconds = setting.machine.devices, phase_seconds(spans(run))
    rollouts = sum(number(line, "rollouts") or 0.0 for line in run.refreshes)
    score = seconds["score"] / rollouts if rollouts else None
    planner = Planner(replace(setting, measured=Measured(varied=varied, score=score)))
    planner.require_fit()
    starts = [number(line, "time/refresh/start") or 0.0 for line in run.refreshes]
    checkpoints = [s for line in run.updates if (s := number(line, "time/checkpoint"))]
    computed = {"generate": 0.0, "optimize": 0.0}
    for stage, (first, updates) in enumerate(stages_of(run)):
        computed["generate"] += planner.generated(first, updates, devices, stage).seconds
        computed["optimize"] += updates * planner.updated(first, devices)
    return Measured(
        generate=_factor(seconds["generate"], computed["generate"]),
        optimize=_factor(seconds["optimize"], computed["optimize"]),
        evaluate=_factor(seconds["evaluate"], _evaluations(planner, run, devices)),
        refresh=(seconds["refresh"] - sum(starts)) / len(starts) if starts else None,
        start=sum(starts) / max(1, sum(start > 0 for start in starts)),
        score=score,
        checkpoint=sum(checkpoints) / len(checkpoints) if checkpoints else None,
        varied=varied,
    )


def stages_of(run: RunData) -> list[tuple[int, int]]:
    """Return (first update, updates) of each stage that a run has made, as far as it has got."""
    firsts = [line["update"] for line in run.refreshes]
    made = len(run.updates)
    ends = [*firsts[1:], made]
    return [(first, end - first) for first, end in zip(firsts, ends, strict=True) if end > first]


def misses(planned: Planned, run: RunData) -> dict[str, tuple[float, float]]:
    """Return part -> (planned, measured) seconds, and "training", which is all but evaluation."""
    seconds = phase_seconds(spans(run))
    pairs = {part: (planned.parts.get(part, 0.0), seconds[part]) for part in seconds}
    training = [pair for part, pair in pairs.items() if part != "evaluate"]
    pairs["training"] = sum(p for p, _ in training), sum(m for _, m in training)
    return pairs


def _evaluations(planner: Planner, run: RunData, devices: int) -> float:
    """Return the computed seconds of the evaluations that a run has measured."""
    if not run.evaluations:
        return 0.0
    each = planner.evaluations(devices)
    return each * len(run.evaluations) / max(1, planner.evaluation_count)


def _factor(measured: float, computed: float) -> float:
    return measured / computed if measured > 0 and computed > 0 else 1.0
