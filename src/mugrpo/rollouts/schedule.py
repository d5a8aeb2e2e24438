"""Which update trains on which groups, and with which random numbers: pure arithmetic.

A run is `stages` x `batches_per_stage` batches of `problems_per_update` groups; every batch is
used for `passes_per_batch` updates. Problems come in epochs, each a fresh permutation of the data
set; an epoch uses whole batches only, so no problem repeats within an update. A problem's
`occurrence` is the epoch it is drawn in, so (problem, occurrence) names a group in its stage.

The updates of a run are fixed, its stages are not: where a stage ends early (`stage_until`), the
next begins there, and more of them are needed. `starts` holds what has come so far.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np

from mugrpo.config.run import ScheduleOptions
from mugrpo.disk.errors import UsageError


@dataclass(frozen=True)
class Schedule:
    """The arithmetic of `options` over a data set of `problems` problems, under `seed`.

    Raises UsageError where the data set is empty or smaller than one update needs.
    """

    options: ScheduleOptions
    problems: int
    seed: int
    starts: tuple[int, ...] = (0,)  # first updates of the stages up to the last that ended early

    def __post_init__(self) -> None:
        if self.problems < self.options.problems_per_update:
            raise UsageError(
                f"the data set has {self.problems} problems, but an update needs "
                f"schedule.problems_per_update = {self.options.problems_per_update} different "
                "ones; lower it or bring more problems"
            )

    @property
    def stages(self) -> int:
        """The stages of the run, if no further one ends early."""
        left = self.options.total_updates - self.starts[-1]
        return len(self.starts) - 1 + math.ceil(left / self.options.updates_per_stage)

    def groups(self, stage: int) -> Iterator[tuple[int, int]]:
        """(index of the problem, occurrence) of each group of `stage`, batch after batch."""
        return islice(self.stream(stage), self.batches(stage) * self.options.problems_per_update)

    def stream(self, stage: int) -> Iterator[tuple[int, int]]:
        """The groups of `stage` and, without end, those that follow them in the epochs."""
        per_update = self.options.problems_per_update
        batches_per_epoch = self.problems // per_update
        epoch, order = -1, np.empty(0, np.int64)
        for batch in count(stage * self.options.batches_per_stage):
            if batch // batches_per_epoch != epoch:
                epoch = batch // batches_per_epoch
                order = np.random.default_rng((self.seed, epoch)).permutation(self.problems)
            start = batch % batches_per_epoch * per_update
            for index in order[start : start + per_update]:
                yield int(index), epoch

    def batches(self, stage: int) -> int:
        """Batches that are sampled for `stage`: those that the run has updates left for."""
        return math.ceil(self.planned_updates(stage) / self.options.passes_per_batch)

    def planned_updates(self, stage: int) -> int:
        """Updates of `stage`, if it does not end early."""
        left = self.options.total_updates - self.first_update(stage)
        return min(self.options.updates_per_stage, left)

    def stage_of(self, update: int) -> int:
        """The stage that update number `update` (from 0) belongs to."""
        if update >= self.options.total_updates:
            return self.stages
        begun = bisect_right(self.starts, update) - 1
        return begun + (update - self.starts[begun]) // self.options.updates_per_stage

    def first_update(self, stage: int) -> int:
        """Updates that the behavior policy of `stage` has seen."""
        further = max(0, stage - (len(self.starts) - 1))
        begun = self.starts[stage - further] + further * self.options.updates_per_stage
        return min(begun, self.options.total_updates)

    def staleness(self, update: int) -> int:
        """Updates made since the behavior policy was the policy, for update `update` from 0."""
        return update - self.first_update(self.stage_of(update))

    def batch_of(self, update: int) -> int:
        """The batch within its stage that update number `update` (from 0) trains on."""
        return self.staleness(update) // self.options.passes_per_batch

    def ending_at(self, update: int) -> Schedule:
        """The schedule where the stage under way ends after `update` updates.

        A last stage that the run's end cuts short ends early too: more updates may be added later.
        """
        stage = self.stage_of(update - 1)
        if update == self.first_update(stage) + self.options.updates_per_stage:
            return self
        begun = (self.first_update(s) for s in range(stage + 1))
        return replace(self, starts=(*begun, update))


def rollout_seed(run_seed: int, stage: str, problem_id: str, occurrence: int, sample: int) -> int:
    """The 64-bit seed of a rollout.

    It depends on what the rollout is, not on shards, batches or workers. `stage` is the stage's
    number, or "evaluation".
    """
    key = "\0".join((str(run_seed), stage, problem_id, str(occurrence), str(sample)))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
