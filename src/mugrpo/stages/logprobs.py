"""What each update trains on: rollouts, scores, and logprobs of other policies, if it needs those.

These logprobs are computed once and stored with the rollouts:

trainer_behavior_logprobs   of the behavior policy through the trainer: once per stage
reference_logprobs          of the reference policy: once per stage
proximal_logprobs           of the proximal policy: once every proximal_period updates
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Rollout
from mugrpo.disk.shards import (
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
from mugrpo.run.progress import Progress
from mugrpo.stages.stage import Stage, reference_update

ONCE_A_STAGE = ("trainer_behavior_logprobs", "reference_logprobs")
_PROXIMAL = "proximal_logprobs"

# (update, rollouts) -> the logprobs [T] of each under the policy after `update` updates
Compute = Callable[[int, Sequence[Rollout]], list[NDArray[np.float32]]]


def logprobs_stage(stage: Stage, compute: Compute, progress: Progress) -> None:
    """Publish the missing shards of the logprobs that are needed once per stage."""
    rollouts = stage.shards("rollouts")
    for name in needed_once(stage):
        kept = stage.shards(name)
        update = stage.first_update
        if name == "reference_logprobs":
            update = reference_update(stage.config, stage.number)
        missing = [s for s in rollouts.numbers() if not _of_these(rollouts, kept, s, update)]
        if not missing:
            continue
        progress.begin(stage.heading(name), "shards", len(missing))
        for shard in missing:
            began = time.monotonic()
            logprobs = compute(update, list(read_rollouts(rollouts, shard)))
            notes = {"rollouts_sha256": rollouts.entry(shard)["sha256"], "policy_step": update}
            write_logprobs(kept, shard, logprobs, **notes, seconds=time.monotonic() - began)
            progress.advance(1)
        progress.end()


def needed_once(stage: Stage) -> list[str]:
    """Return the names of the logprobs that updates need once per stage."""
    return [name for name in stage.config.needs if name in ONCE_A_STAGE]


def seconds_once(stage: Stage) -> float:
    """Return the seconds that the stored logprobs of `needed_once` took."""
    entries = (entry for name in needed_once(stage) for entry in stage.shards(name).entries())
    return math.fsum(entry["seconds"] for entry in entries)


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
    policies: those of the proximal policy are computed and stored when an update first needs them.
    Raises UsageError if the stage's plan has fewer batches than the schedule.
    """

    def __init__(self, stage: Stage, compute: Compute) -> None:
        self.stage = stage
        self._compute = compute
        self._schedule, self._period = stage.config.schedule, stage.config.proximal_period
        self._plan = read_plan(stage.shards("plan"))
        if len(self._plan) < stage.batches:
            raise UsageError(
                f"{stage.shards('plan').folder} has {len(self._plan)} batches, the schedule "
                f"{stage.batches}: undo the change of schedule.stages until stage {stage.number} "
                "is over"
            )
        self._judge = stage.required_judge()
        self.open()

    def open(self) -> None:
        """Read the manifests again, to see the shards that exist now."""
        stage = self.stage
        self._files = stage.shards("rollouts"), stage.shards("scores")
        self._rollouts, self._scores = map(RowReader, self._files)
        self._once = {name: RowReader(stage.shards(name)) for name in needed_once(stage)}

    def of_update(self, update: int) -> Experience:
        """Return what update number `update` (from 0) trains on.

        If the proximal policy is renewed at every update, it is the policy itself and has no
        stored logprobs.
        """
        places = self._plan[self._schedule.batch_of(update)]
        stored = {
            name: [rows.row(*place)["logprobs"] for place in places]
            for name, rows in self._once.items()
        }
        if self._period > 1:
            stored[_PROXIMAL] = self._of_proximal(update)
        return Experience(
            [rollout_from_row(self._rollouts.row(*place)) for place in places],
            [score_from_row(self._scores.row(*place)) for place in places],
            stored,
        )

    def shards_of(self, update: int) -> set[int]:
        """Return the stage's shards that update number `update` (from 0) reads.

        If it computes logprobs of more rollouts, theirs are among them.
        """
        return {place.shard for batch in self._batches(update) for place in self._plan[batch]}

    def has(self, shards: Collection[int]) -> bool:
        """Return whether these shards exist and are scored by the required judge."""
        rollouts, scores = self._files
        return all(scored(rollouts, scores, shard, self._judge) for shard in shards)

    def _batches(self, update: int) -> list[int]:
        """Return the batches that an update and the others of its proximal period train on."""
        first = update - self._schedule.staleness(update) % self._period
        updates = range(first, min(first + self._period, self.stage.end))
        return list(dict.fromkeys(map(self._schedule.batch_of, updates)))

    def _of_proximal(self, update: int) -> list[NDArray[np.float32]]:
        """Return the proximal policy's logprobs; compute those of a whole period at once.

        In the middle of a period (a shard was lost, or the objective changed), that policy is
        loaded from a checkpoint.
        """
        kept, rollouts = self.stage.shards(_PROXIMAL), self._files[0]
        period, since = divmod(self._schedule.staleness(update), self._period)
        batches = self._batches(update)
        places = [place for batch in batches for place in self._plan[batch]]
        notes = {
            "policy_step": update - since,
            "period": self._period,
            "rollouts_sha256": [
                rollouts.entry(shard)["sha256"] for shard in sorted({p.shard for p in places})
            ],
        }
        made = period in kept and notes.items() <= kept.entry(period).items()
        # At a period's first update the policy itself is at hand, and updates that were made again
        # after --force may have led to another one than that of the stored logprobs.
        if since == 0 or not made:
            those = [rollout_from_row(self._rollouts.row(*place)) for place in places]
            write_logprobs(kept, period, self._compute(update - since, those), **notes)
        before = batches[: batches.index(self._schedule.batch_of(update))]
        start = sum(len(self._plan[batch]) for batch in before)
        own = len(self._plan[self._schedule.batch_of(update)])
        return list(read_logprobs(kept, period))[start : start + own]
