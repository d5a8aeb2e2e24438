"""What a run has measured, for plans of other schedules."""

from __future__ import annotations

from dataclasses import replace

from mugrpo.extensions.lab.plan.schedules import Planner
from mugrpo.extensions.lab.plan.setting import Measured, Setting
from mugrpo.report.read import RunData, number, phase_seconds, spans


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
    rollouts = [int(number(line, "rollouts") or 0) for line in run.refreshes]
    starts = [number(line, "time/refresh/start") or 0.0 for line in run.refreshes]
    checkpoints = [s for line in run.updates if (s := number(line, "time/checkpoint"))]
    measured = Measured(
        refresh=(seconds["refresh"] - sum(starts)) / len(starts) if starts else None,
        start=sum(starts) / max(1, sum(start > 0 for start in starts)),
        score=seconds["score"] / sum(rollouts) if sum(rollouts) else None,
        checkpoint=sum(checkpoints) / len(checkpoints) if checkpoints else None,
        varied=varied,
    )
    planner = Planner(replace(setting, measured=measured))
    planner.require_fit()
    size = setting.config.schedule.group_size
    generate = sum(
        planner.generated(line["update"], made // size, devices, stage).seconds
        for stage, (line, made) in enumerate(zip(run.refreshes, rollouts, strict=True))
        if made
    )
    optimize = sum(made * planner.updated(first, devices) for first, made in stages_of(run))
    evaluations = planner.evaluations(devices)
    evaluate = sum(evaluations.get(line["update"], 0.0) for line in run.evaluations)
    return replace(
        measured,
        generate=_factor(seconds["generate"], generate),
        optimize=_factor(seconds["optimize"], optimize),
        evaluate=_factor(seconds["evaluate"], evaluate),
    )


def stages_of(run: RunData) -> list[tuple[int, int]]:
    """Return (first update, updates) of each stage that a run has made, as far as it has got."""
    firsts = [line["update"] for line in run.refreshes]
    made = len(run.updates)
    ends = [*firsts[1:], made]
    return [(first, end - first) for first, end in zip(firsts, ends, strict=True) if end > first]


def _factor(measured: float, computed: float) -> float:
    return measured / computed if measured > 0 and computed > 0 else 1.0
