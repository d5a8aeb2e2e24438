"""Which update trains on which groups, and with which random numbers: pure arithmetic.

A run is `stages` x `batches_per_stage` batches of `problems_per_update` groups; every batch is
used for `passes_per_batch` updates. Problems come in epochs, each a fresh permutation of the data
set; an epoch uses whole batches only, so no problem repeats within an update. A problem's
`occurrence` is the epoch it is drawn in, so (problem, occurrence) names a group in the whole run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mugrpo.config.run import ScheduleOptions
from mugrpo.errors import UsageError


@dataclass(frozen=True)
class Schedule:
    """The arithmetic of `options` over a data set of `problems` problems, under `seed`.

    Raises UsageError where the data set is empty or smaller than one update needs.
    """

    options: ScheduleOptions
    problems: int
    seed: int

    def __post_init__(self) -> None:
        if self.problems < self.options.problems_per_update:
            raise UsageError(
                f"the data set has {self.problems} problems, but an update needs "
                f"schedule.problems_per_update = {self.options.problems_per_update} different "
                "ones; lower it or bring more problems"
            )

    def groups(self, stage: int) -> Iterator[tuple[int, int]]:
        """(index of the problem, occurrence) of each group of `stage`, batch after batch."""
        per_update = self.options.problems_per_update
        batches_per_epoch = self.problems // per_update
        first = stage * self.options.batches_per_stage
        epoch, order = -1, np.empty(0, np.int64)
        for batch in range(first, first + self.options.batches_per_stage):
            if batch // batches_per_epoch != epoch:
                epoch = batch // batches_per_epoch
                order = np.random.default_rng((self.seed, epoch)).permutation(self.problems)
            start = batch % batches_per_epoch * per_update
            for index in order[start : start + per_update]:
                yield int(index), epoch

    def stage_of(self, update: int) -> int:
        """The stage that update number `update` (from 0) belongs to."""
        return update // self.options.updates_per_stage

    def first_update(self, stage: int) -> int:
        """Updates that the behavior policy of `stage` has seen."""
        return stage * self.options.updates_per_stage

    def staleness(self, update: int) -> int:
        """Updates made since the behavior policy was the policy, for update `update` from 0."""
        return update % self.options.updates_per_stage

    def batch_of(self, update: int) -> int:
        """The batch within its stage that update number `update` (from 0) trains on."""
        return self.staleness(update) // self.options.passes_per_batch


def rollout_seed(run_seed: int, stage: str, problem_id: str, occurrence: int, sample: int) -> int:
    """The 64-bit seed of a rollout.

    It depends on what the rollout is, not on shards, batches or workers. `stage` is the stage's
    number, or "evaluation".
    """
    key = "\0".join((str(run_seed), stage, problem_id, str(occurrence), str(sample)))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
