"""What each update trains on: rollouts, scores, and logprobs of other policies, if it needs those.

These logprobs are computed once and stored with the rollouts:

trainer_behavior_logprobs   of the behavior policy through the trainer: once per stage
reference_logprobs          of the reference policy: once per stage
proximal_logprobs           of the proximal policy: once every proximal_period updates
"""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.records import Rollout
from mugrpo.disk.shards import (
    Place,
    RowReader,
    ShardSet,
    read_logprobs,
    read_rollouts,
    rollout_from_row,
    score_from_row,
    write_logprobs,
)
from mugrpo.optimize.experience import Experience
from mugrpo.run.progress import Progress
from mugrpo.run.stage import Selection, Stage, reference_update

ONCE_A_STAGE = ("trainer_behavior_logprobs", "reference_logprobs")
_PROXIMAL = "proximal_logprobs"

# (update, rollouts) -> the logprobs [T] of each under the policy after `update` updates
LogprobsAt = Callable[[int, Sequence[Rollout]], list[NDArray[np.float32]]]


def needed_once(stage: Stage) -> list[str]:
    """Return the names of the logprobs that updates need once per stage."""
    return [name for name in stage.config.needs if name in ONCE_A_STAGE]


def seconds_once(stage: Stage) -> float:
    """Return the seconds that the stored logprobs of `needed_once` took."""
    entries = (entry for name in needed_once(stage) for entry in stage.shards(name).entries())
    return math.fsum(entry["seconds"] for entry in entries)


def publish_logprobs(stage: Stage, logprobs: LogprobsAt, progress: Progress) -> None:
    """Publish the missing shards of the logprobs that updates need once per stage.

    There is one for each published shard of rollouts.
    """
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
            of_shard = logprobs(update, list(read_rollouts(rollouts, shard)))
            notes = {"rollouts_sha256": rollouts.entry(shard)["sha256"], "policy_step": update}
            write_logprobs(kept, shard, of_shard, **notes, seconds=time.monotonic() - began)
            progress.advance(1)
        progress.end()


def _of_these(rollouts: ShardSet, kept: ShardSet, shard: int, update: int) -> bool:
    """Return whether `kept` has the logprobs of exactly these rollouts after `update` updates."""
    if shard not in kept:
        return False
    entry = kept.entry(shard)
    same = entry.get("rollouts_sha256") == rollouts.entry(shard)["sha256"]
    return bool(same and entry.get("policy_step") == update)


class StageReader:
    """The rollouts, scores and stored logprobs of a stage, read for one update at a time.

    `logprobs` returns those of other policies: those of the proximal policy are computed and
    stored when an update first needs them.
    """

    def __init__(self, stage: Stage, logprobs: LogprobsAt) -> None:
        self.stage = stage
        self._logprobs = logprobs
        self._schedule, self._period = stage.config.schedule, stage.config.proximal_period
        self._selection = Selection(stage)
        self._rollouts, self._scores = map(RowReader, map(stage.shards, ("rollouts", "scores")))
        self._once = {name: RowReader(stage.shards(name)) for name in needed_once(stage)}

    def of_update(self, update: int) -> Experience:
        """Return what update number `update` (from 0) trains on, which must be `ready`.

        If the proximal policy is renewed at every update, it is the policy itself and has no
        stored logprobs.
        """
        places = self._places(self._schedule.batch_of(update))
        stored = {
            name: [row["logprobs"] for row in rows.rows(places)]
            for name, rows in self._once.items()
        }
        if self._period > 1:
            stored[_PROXIMAL] = self._of_proximal(update)
        return Experience(
            list(map(rollout_from_row, self._rollouts.rows(places))),
            list(map(score_from_row, self._scores.rows(places))),
            stored,
        )

    def ready(self, update: int) -> bool:
        """Return whether all that update number `update` (from 0) reads is published and scored.

        If it computes logprobs of more rollouts, they are part of it.
        """
        batches = [self._selection.batch(batch) for batch in self._batches(update)]
        if None in batches:
            return False
        shards = {place.shard for places in batches for place in places or ()}
        return all(map(self.stage.scored, shards))

    def _places(self, batch: int) -> list[Place]:
        places = self._selection.batch(batch)
        assert places is not None, "the update is not ready"
        return places

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
        kept, rollouts = self.stage.shards(_PROXIMAL), self.stage.shards("rollouts")
        period, since = divmod(self._schedule.staleness(update), self._period)
        batches = self._batches(update)
        places = [place for batch in batches for place in self._places(batch)]
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
            those = list(map(rollout_from_row, self._rollouts.rows(places)))
            write_logprobs(kept, period, self._logprobs(update - since, those), **notes)
        before = batches[: batches.index(self._schedule.batch_of(update))]
        own = self._schedule.rollouts_per_update
        return read_logprobs(kept, period)[len(before) * own :][:own]
