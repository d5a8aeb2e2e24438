"""Which groups each update trains on, and the seed of each rollout: pure arithmetic.

A run is `stages` x `batches_per_stage` batches (more in each stage, with `growth`) of
`problems_per_update` groups; every batch is used for `passes_per_batch` updates. Problems come in
epochs, each a fresh permutation of the data set. An epoch consists of full batches only, so no
problem repeats within an update. A problem's `occurrence` is the epoch in which it is drawn, so
(problem, occurrence) identifies a group. Each source of a mixture has epochs of its own (see
`mixing`).

The number of updates is fixed, but the number of stages is not. If a stage ends early
(`stage_until`), the next stage begins there, and the run needs more stages. `starts` records where
stages began.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice

from mugrpo.config.mixture import MixtureOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.stages import ScheduleOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.rollouts.mixing import (
    Epochs,
    Source,
    dealt,
    interleaved,
    places,
    too_small,
    weights_in,
)


@dataclass(frozen=True)
class Schedule:
    """The schedule of a run with these `options` and `seed` on a data set of `problems` problems.

    If they are of several `sources`, those of a source are adjacent, in the order of the sources.
    Raises UsageError if the data set or a source is smaller than one update needs.
    """

    options: ScheduleOptions
    problems: int
    seed: int
    # the first update of each stage, up to the stage after the last early end
    starts: tuple[int, ...] = (0,)
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        for stage in range(self.options.stages if self.sources else 0):
            for source, needed in zip(self.sources, self.largest_hands(stage), strict=True):
                if source.problems < needed:
                    raise too_small(source.name, source.problems, needed)
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
        """Yield the groups of `stage`, then those that follow in the epochs, without end.

        Groups that follow may need one more of a source than it has; then they lack it.
        """
        size, sources = self.options.problems_per_update, self.parts
        firsts = accumulate((source.problems for source in sources), initial=0)
        epochs = [
            Epochs(source, self.seed, number, first, place)
            for number, (source, first, place) in enumerate(
                zip(sources, firsts, places(self.options, sources, stage), strict=False)
            )
        ]
        order = interleaved(weights_in(sources, stage))
        while True:
            batch = list(islice(order, size))
            hands = {n: iter(epochs[n].hand(groups)) for n, groups in Counter(batch).items()}
            for number in batch:
                yield from islice(hands[number], 1)

    def largest_hands(self, stage: int) -> list[int]:
        """Return the most groups of each source that an update of `stage` needs."""
        size = self.options.problems_per_update
        hands = dealt(weights_in(self.parts, stage), self.options.batches(stage), size)
        return [max(groups) for groups in zip(*hands, strict=True)]

    @property
    def parts(self) -> tuple[Source, ...]:
        """Return the sources, or the data set as one."""
        return self.sources or (Source(self.problems),)

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


def schedule_of(
    config: RunConfig, problems: Sequence[Problem], starts: tuple[int, ...] = (0,)
) -> Schedule:
    """Return the schedule of a run on `problems`, those to train on.

    Raises UsageError as `Schedule` does.
    """
    sources: tuple[Source, ...] = ()
    if isinstance(config.task, MixtureOptions):
        counts = Counter(problem.source for problem in problems)
        sources = tuple(
            Source(counts[source.source], source.source, source.weight)
            for source in config.task.sources
        )
    return Schedule(config.schedule, len(problems), config.seed, starts, sources)


def rollout_seed(run_seed: int, stage: str, problem_id: str, occurrence: int, sample: int) -> int:
    """Return the 64-bit seed of a rollout.

    It depends only on which rollout this is, not on shards, batches or workers. `stage` is the
    stage's number, or "evaluation".
    """
    return _seed_of(str(run_seed), stage, problem_id, str(occurrence), str(sample))


def turn_seed(seed: int, turn: int) -> int:
    """Return the 64-bit seed of a turn, from 0, of the rollout with this `seed`, the first's."""
    return _seed_of(str(seed), str(turn)) if turn else seed


def _seed_of(*key: str) -> int:
    digest = hashlib.blake2b("\0".join(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
