"""Where a run's time went, in the order of the work, and what the run would cost under GRPO.

Only durations (`time/*`) are added up, never clock times: a run that was killed and resumed looks
like one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mugrpo.disk.metrics import PHASES, seconds_of
from mugrpo.report.read import Line, RunData, number

GRPO_UPDATES_PER_REFRESH = 4  # mu of the standard GRPO that Mu-GRPO is compared with


@dataclass(frozen=True)
class Span:
    """Seconds spent on a phase after `update` updates ("optimize": on that update itself)."""

    phase: str
    stage: int  # counted by refreshes; -1 before the first
    update: int
    seconds: float


@dataclass(frozen=True)
class GRPOCost:
    """A run's updates under GRPO with mu = 4: arithmetic on measured durations."""

    refreshes: int
    refresh_seconds: float  # mean over the measured refreshes
    measured: int  # refreshes
    training_seconds: float


def spans(run: RunData) -> list[Span]:
    """Return the run's time in order: update, checkpoint, evaluation, then the next refresh.

    A checkpoint's seconds are in the line of the update after it; here they come before that
    update.
    """
    entries = [
        (line["update"] - (phase == "checkpoint"), order, phase, seconds_of(line, phase))
        for line in (*run.updates, *run.evaluations, *run.refreshes)
        for phase, order in _ORDER.items()
        if PHASES[phase][0] == line["kind"]
    ]
    entries.sort(key=lambda entry: entry[:2])
    ordered, stage = [], -1
    for update, _, phase, seconds in entries:
        stage += phase == "refresh"
        if seconds > 0:
            # An evaluation before the first refresh belongs to the stage that follows.
            ordered.append(Span(phase, max(stage, 0), update, seconds))
    return ordered


def training_clock(run: RunData) -> dict[tuple[str, int], float]:
    """Return the seconds of training, without evaluation, up to each ("update"|"evaluation", n)."""
    passed, clock = 0.0, dict[tuple[str, int], float]()
    timeline = iter(spans(run))
    events = [("update", line["update"], 0) for line in run.updates]
    events += [("evaluation", line["update"], 1) for line in run.evaluations]
    pending = next(timeline, None)
    for kind, update, order in sorted(events, key=lambda event: (event[1], event[2])):
        while pending and (pending.update, _ORDER[pending.phase]) <= (update, order):
            passed += pending.seconds if pending.phase != "evaluate" else 0.0
            pending = next(timeline, None)
        clock[kind, update] = passed
    return clock


def phase_seconds(timeline: Sequence[Span]) -> dict[str, float]:
    """Return phase -> total seconds."""
    return {phase: sum(s.seconds for s in timeline if s.phase == phase) for phase in PHASES}


def training_seconds(run: RunData) -> float:
    """Return the seconds of all phases but evaluation."""
    return sum(span.seconds for span in spans(run) if span.phase != "evaluate")


def grpo_cost(run: RunData) -> GRPOCost | None:
    """Return the cost of the same updates with a refresh after every four of them.

    Return None if no refresh was measured.
    """
    measured = [
        s - (number(line, "time/refresh/start") or 0.0)  # an engine starts once, however few
        for line in run.refreshes
        if (s := number(line, "time/refresh")) is not None and s >= 0
    ]
    if not measured or not run.updates:
        return None
    mean = sum(measured) / len(measured)
    refreshes = math.ceil(run.made / GRPO_UPDATES_PER_REFRESH)
    return GRPOCost(
        refreshes=refreshes,
        refresh_seconds=mean,
        measured=len(measured),
        training_seconds=training_seconds(run) - sum(measured) + refreshes * mean,
    )


def refresh_parts(lines: Iterable[Line]) -> dict[str, float]:
    """Return the total seconds of each part of the refreshes in `lines`, if they were measured."""
    totals: dict[str, float] = {}
    for line in lines:
        for key in line:
            if key.startswith(_PART):
                name = key.removeprefix(_PART)
                totals[name] = totals.get(name, 0.0) + (number(line, key) or 0.0)
    return totals


_PART = "time/refresh/"

# Within an update: the next refresh comes after the update, its checkpoint and its evaluation.
_ORDER = {"optimize": 0, "checkpoint": 1, "evaluate": 2, "refresh": 3, "generate": 4, "score": 5}
