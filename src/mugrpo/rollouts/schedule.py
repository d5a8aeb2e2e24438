"""Which groups each update trains on, and the seed of each rollout: pure arithmetic.

A run is `stages` x `batches_per_stage` batches (more in each stage, with `growth`) of
`problems_per_update` groups; every batch is used for `passes_per_batch` updates. Problems come in
epochs, each a fresh permutation of the data set. An epoch consists of full batches only, so no
problem repeats within an update. A problem's `occurrence` is the epoch in which it is drawn, so
(problem, occurrence) identifies a group.

The number of updates is fixed, but the number of stages is not. If a stage ends early
(`stage_until`), the next stage begins there, and the run needs more stages. `starts` records where
stages began.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np

from mugrpo.config.stages import ScheduleOptions
from mugrpo.disk.errors import UsageError


@dataclass(frozen=True)
class Schedule:
    """The schedule of a run with these `options` and `seed` on a data set of `problems` problems.

    Raises UsageError if the data set is empty or smaller than one update needs.
    """

    options: ScheduleOptions
    problems: int
    seed: int
    # the first update of each stage, up to the stage after the last early end
    starts: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if self.problems < self.options.problems_per_update:
            raise UsageError(
                f"the data set has {self.problems} problems, but an update needs "
                f"schedule.problems_per_update = {self.options.problems_per_update} different "
                "ones; lower it, or use a data set with more problems"
            )

    @property
    def stages(self) -> int:
        """Return the number of stages of the run, if no further stage ends early."""
        return self._stage_from(self.options.total_updates - 1) + 1

    def groups(self, stage: int) -> Iterator[tuple[int, int]]:
        """Yield (index of the problem, occurrence) for each group of `stage`, batch by batch."""
        return islice(self.stream(stage), self.batches(stage) * self.options.problems_per_update)

    def stream(self, stage: int) -> Iterator[tuple[int, int]]:
        """Yield the groups of `stage`, then those that follow in the epochs, without end."""
        per_update = self.options.problems_per_update
        batches_per_epoch = self.problems // per_update
        epoch, order = -1, np.empty(0, np.int64)
        before = self.options.updates_between(0, stage) // self.options.passes_per_batch
        for batch in count(before):
            if batch // batches_per_epoch != epoch:
                epoch = batch // batches_per_epoch
                order = np.random.default_rng((self.seed, epoch)).permutation(self.problems)
            start = batch % batches_per_epoch * per_update
            for index in order[start : start + per_update]:
                yield int(index), epoch

    def batches(self, stage: int) -> int:
        """Return the number of batches that `stage` samples: as many as its updates need."""
        return math.ceil(self.planned_updates(stage) / self.options.passes_per_batch)

    def planned_updates(self, stage: int) -> int:
        """Return the number of updates of `stage`, if it does not end early."""
        left = self.options.total_updates - self.first_update(stage)
        return min(self.options.updates(stage), left)

    def stage_of(self, update: int) -> int:
        """Return the stage that update number `update` (from 0) belongs to."""
        if update >= self.options.total_updates:
            return self.stages
        return self._stage_from(update)

    def first_update(self, stage: int) -> int:
        """Return the number of updates before `stage`. Its behavior policy has received these."""
        known = min(stage, len(self.starts) - 1)
        further = self.options.updates_between(known, stage)
        return min(self.starts[known] + further, self.options.total_updates)

    def staleness(self, update: int) -> int:
        """Return the number of updates from the behavior policy to update number `update`."""
        return update - self.first_update(self.stage_of(update))

    def batch_of(self, update: int) -> int:
        """Return the batch, within its stage, that update number `update` (from 0) trains on."""
        staleness = self.staleness(update)
        if self.options.pass_order == "stage":
            return staleness % self.batches(self.stage_of(update))
        return staleness // self.options.passes_per_batch

    def used(self, stage: int, update: int) -> set[int]:
        """Return the batches of `stage` that the updates before `update` trained on."""
        return set(map(self.batch_of, range(self.first_update(stage), update)))

    def ending_at(self, update: int) -> Schedule:
        """Return the schedule in which the current stage ends after `update` updates.

        If the end of the run cuts its last stage short, that counts as an early end too, because
        updates may be added to the run later.
        """
        stage = self.stage_of(update - 1)
        if update == self.first_update(stage) + self.options.updates(stage):
            return self
        starts = (self.first_update(s) for s in range(stage + 1))
        return replace(self, starts=(*starts, update))

    def _stage_from(self, update: int) -> int:
        """Return the stage of an update of the run, from the starts that are known."""
        stage = bisect_right(self.starts, update) - 1
        if self.options.growth == 1:
            return stage + (update - self.starts[stage]) // self.options.updates_per_stage
        end = self.starts[stage] + self.options.updates(stage)
        while end <= update:
            stage += 1
            end += self.options.updates(stage)
        return stage


def rollout_seed(run_seed: int, stage: str, problem_id: str, occurrence: int, sample: int) -> int:
    """Return the 64-bit seed of a rollout.

    It depends only on which rollout this is, not on shards, batches or workers. `stage` is the
    stage's number, or "evaluation".
    """
    key = "\0".join((str(run_seed), stage, problem_id, str(occurrence), str(sample)))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
