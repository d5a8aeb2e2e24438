"""What each update trains on: rollouts, scores, and logprobs of other policies, if it needs those.

These logprobs are computed once and stored with the rollouts:

trainer_behavior_logprobs   of the behavior policy through the trainer: once per stage
reference_logprobs          of the reference policy: once per stage
proximal_logprobs           of the proximal policy: once every proximal_period updates
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Rollout
from mugrpo.disk.shards import (
    Place,
    RowReader,
    ShardSet,
    read_logprobs,
    read_plan,
    read_rollouts,
    rollout_from_row,
    score_from_row,
    write_logprobs,
)
from mugrpo.optimize.experience import Experience
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.statistics import refresh_metrics
from mugrpo.run.progress import Progress
from mugrpo.stages.stage import Stage

ONCE_A_STAGE = ("trainer_behavior_logprobs", "reference_logprobs")
_PROXIMAL = "proximal_logprobs"

Places = list[Place]
# (update, rollouts) -> the logprobs [T] of each under the policy after `update` updates
Compute = Callable[[int, Sequence[Rollout]], list[NDArray[np.float32]]]


def logprobs_stage(stage: Stage, compute: Compute, progress: Progress) -> None:
    """Publish the missing shards of the logprobs that are needed once per stage."""
    rollouts = stage.shards("rollouts")
    for name in needed_once(stage):
        kept = stage.shards(name)
        is_reference = name == "reference_logprobs"
        update = stage.reference_update() if is_reference else stage.first_update
        missing = [s for s in rollouts.numbers() if not _of_these(rollouts, kept, s, update)]
        if not missing:
            continue
        progress.begin(stage.heading(name), "shards", len(missing))
        for shard in missing:
            logprobs = compute(update, list(read_rollouts(rollouts, shard)))
            sha256 = rollouts.entry(shard)["sha256"]
            write_logprobs(kept, shard, logprobs, rollouts_sha256=sha256, policy_step=update)
            progress.advance(1)
        progress.end()


def needed_once(stage: Stage) -> list[str]:
    """Return the names of the logprobs that updates need once per stage."""
    return [name for name in stage.config.needs if name in ONCE_A_STAGE]


def require_logprobs(stage: Stage, ranks: int) -> None:
    """Raise UsageError if several ranks would have to compute logprobs, which they cannot."""
    missing = [
        name
        for name in needed_once(stage)
        if set(stage.shards("rollouts").numbers()) - set(stage.shards(name).numbers())
    ]
    if ranks > 1 and stage.config.proximal_period > 1:
        missing.append(_PROXIMAL)
    if missing:
        raise UsageError(
            f"the updates need {missing[0]}, which several ranks cannot compute; start the run "
            f"with `mugrpo train {stage.folder.root} --distributed.processes N`, or use one process"
        )


class StoredLogprobs:
    """The stored logprobs that the updates of `stage` need.

    Those of the proximal policy are computed and stored when an update first needs them.
    """

    def __init__(self, stage: Stage, plan: Sequence[Places], compute: Compute) -> None:
        self._stage = stage
        self._plan = plan
        self._compute = compute
        self._shards = stage.shards("rollouts")
        self._rollouts = RowReader(self._shards)
        self._once = {name: RowReader(stage.shards(name)) for name in needed_once(stage)}
        self._period = stage.config.proximal_period
        self._proximal = _PROXIMAL in stage.config.needs and self._period > 1
        self._kept = stage.shards(_PROXIMAL)

    def of_update(self, update: int) -> dict[str, list[NDArray[np.float32]]]:
        """Return name -> the logprobs [T] of each rollout of update number `update` (from 0).

        If the proximal policy is renewed at every update, it is the policy itself and has no
        logprobs here.
        """
        batch = self._stage.schedule.batch_of(update)
        logprobs = {
            name: [rows.row(*place)["logprobs"] for place in self._plan[batch]]
            for name, rows in self._once.items()
        }
        if self._proximal:
            logprobs[_PROXIMAL] = self._of_proximal(update, batch)
        return logprobs

    def batches_for(self, update: int) -> list[int]:
        """Return the batches whose rollouts an update reads: its own, or those of its period."""
        if not self._proximal:
            return [self._stage.schedule.batch_of(update)]
        return self._batches(self._stage.schedule.staleness(update) // self._period)

    def _of_proximal(self, update: int, batch: int) -> list[NDArray[np.float32]]:
        period = self._stage.schedule.staleness(update) // self._period
        batches = self._batches(period)
        first = self._stage.first_update + period * self._period
        places = [place for b in batches for place in self._plan[b]]
        shards = sorted({place.shard for place in places})
        notes = {
            "policy_step": first,
            "period": self._period,
            "rollouts_sha256": [self._shards.entry(shard)["sha256"] for shard in shards],
        }
        if update == first or not self._is_kept(period, notes):
            self._make(period, places, notes)
        start = sum(len(self._plan[b]) for b in batches[: batches.index(batch)])
        kept = list(read_logprobs(self._kept, period))
        return kept[start : start + len(self._plan[batch])]

    def _batches(self, period: int) -> list[int]:
        """Return the batches that the updates of `period` train on, each once."""
        first = self._stage.first_update + period * self._period
        updates = range(first, min(first + self._period, self._stage.end))
        return list(dict.fromkeys(map(self._stage.schedule.batch_of, updates)))

    def _is_kept(self, period: int, notes: dict[str, Any]) -> bool:
        return period in self._kept and notes.items() <= self._kept.entry(period).items()

    def _make(self, period: int, places: Places, notes: dict[str, Any]) -> None:
        """Store the logprobs of a period's rollouts under the policy that the period begins with.

        In the middle of a period (a shard was lost, or the objective changed), that policy is
        loaded from a checkpoint.
        """
        rollouts = [rollout_from_row(self._rollouts.row(*place)) for place in places]
        logprobs = self._compute(notes["policy_step"], rollouts)
        write_logprobs(self._kept, period, logprobs, **notes)


def _of_these(rollouts: ShardSet, kept: ShardSet, shard: int, update: int) -> bool:
    """Return whether `kept` has the logprobs of exactly these rollouts after `update` updates."""
    if shard not in kept:
        return False
    entry = kept.entry(shard)
    same = entry.get("rollouts_sha256") == rollouts.entry(shard)["sha256"]
    return bool(same and entry.get("policy_step") == update)


class StageReader:
    """The rollouts, scores and stored logprobs of a stage, read for one update at a time.

    It sees the shards that existed when it was last opened. `compute` returns logprobs of other
    policies. Raises UsageError if the stage's plan has fewer batches than the schedule.
    """

    def __init__(self, stage: Stage, compute: Compute) -> None:
        self.stage = stage
        self._compute = compute
        self._plan = read_plan(stage.shards("plan"))
        batches = stage.schedule.batches(stage.number)
        if len(self._plan) < batches:
            raise UsageError(
                f"{stage.shards('plan').folder} has {len(self._plan)} batches, the schedule "
                f"{batches}: undo the change of schedule.stages until stage {stage.number} is over"
            )
        self._shards = {place.shard for batch in self._plan for place in batch}
        self._judge = stage.required_judge()
        self.open()

    def open(self) -> None:
        """Read the manifests again, to see the shards that exist now."""
        self._files = self.stage.shards("rollouts"), self.stage.shards("scores")
        self._rollouts, self._scores = map(RowReader, self._files)
        self._stored = StoredLogprobs(self.stage, self._plan, self._compute)

    def behavior_reward(self) -> float | None:
        """Return the mean reward of the stage's rollouts, or None if some are not scored yet."""
        if not self.has(self._shards):
            return None
        reward: float | None = refresh_metrics(*self._files)["behavior_reward"]
        return reward

    def of_update(self, update: int) -> Experience:
        """Return what update number `update` (from 0) trains on."""
        places = self._plan[self.stage.schedule.batch_of(update)]
        return Experience(
            [rollout_from_row(self._rollouts.row(*place)) for place in places],
            [score_from_row(self._scores.row(*place)) for place in places],
            self._stored.of_update(update),
        )

    def shards_of(self, update: int) -> set[int]:
        """Return the stage's shards that update number `update` (from 0) reads.

        If it computes logprobs of more rollouts, theirs are among them.
        """
        batches = (self._plan[batch] for batch in self._stored.batches_for(update))
        return {place.shard for batch in batches for place in batch}

    def has(self, shards: Collection[int]) -> bool:
        """Return whether these shards exist and are scored by the required judge."""
        rollouts, scores = self._files
        return all(scored(rollouts, scores, shard, self._judge) for shard in shards)
