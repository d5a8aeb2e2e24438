"""The plan that a run keeps in plan.json: the seconds of each part of every stage.

`mugrpo.tools.plan.kept` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mugrpo.disk.run_dir import RunDir

_UNITS = {  # what is counted -> the parts of its seconds
    "update": ("optimize", "checkpoint"),
    "rollout": ("generate", "score"),
    "refresh": ("refresh",),
    "evaluation": ("evaluate",),
}


@dataclass(frozen=True)
class PlannedStage:
    """A stage as it was planned."""

    first: int  # updates before it
    counts: Mapping[str, int]  # of updates, rollouts, refreshes and evaluations, by _UNITS
    seconds: Mapping[str, float]  # of each part
    ends: Sequence[float]  # share of generation after which each of equal shares of it has ended

    def of(self, unit: str) -> float:
        """Return the seconds of all that is counted as `unit`."""
        return sum(self.seconds.get(part, 0.0) for part in _UNITS[unit])


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run. What it tells of updates before `begins` was measured, not planned."""

    source: str  # what it was made from
    begins: int
    stages: Sequence[PlannedStage]

    def each(self, unit: str, stage: int) -> float:
        """Return the seconds of one update, rollout, refresh or evaluation in a stage.

        More stages repeat the last. A stage without any has the mean of all stages.
        """
        chosen = self.stages[min(stage, len(self.stages) - 1)]
        among = [chosen] if chosen.counts.get(unit) else self.stages
        count = sum(one.counts.get(unit, 0) for one in among)
        return sum(one.of(unit) for one in among) / count if count else 0.0


def read_plan(folder: RunDir) -> RunPlan | None:
    """Return a run's plan, or None if it has none that can be read."""
    try:
        raw = json.loads(folder.plan.read_bytes())
        stages = [
            PlannedStage(
                int(stage["first"]),
                {str(unit): int(count) for unit, count in stage["counts"].items()},
                {str(part): float(seconds) for part, seconds in stage["seconds"].items()},
                [float(end) for end in stage["ends"]],
            )
            for stage in raw["stages"]
        ]
        return RunPlan(str(raw["source"]), int(raw["begins"]), stages) if stages else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
