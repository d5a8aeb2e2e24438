"""Which groups each update trains on, and the seed of each rollout: pure arithmetic.

A run is `stages` x `batches_per_stage` batches (more in each stage, with `growth`) of
`problems_per_update` groups; every batch is used for `passes_per_batch` updates. Problems come in
epochs, each a fresh permutation of the data set. An epoch consists of full batches only, so no
problem repeats within an update. A problem's `occurrence` is the epoch in which it is drawn, so
(problem, occurrence) identifies a group. Each source of a mixture has epochs of its own.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, count, islice, repeat

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.base import at_stage
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import MixtureOptions
from mugrpo.config.training import ScheduleOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem

Draw = tuple[Problem, int]  # a problem and its occurrence: one group to sample


@dataclass(frozen=True)
class Schedule:
    """The groups that each stage draws; `config.schedule` has the sizes.

    They are those of a run with these `options` and `seed` on `problems`, those to train on. If
    they are of several `sources`, those of a source are adjacent, in the order of the sources.
    Raises UsageError if the data set or a source is smaller than one update needs.
    """

    options: ScheduleOptions
    problems: Sequence[Problem]
    seed: int
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        for stage in range(self.options.stages if self.sources else 0):
            for source, needed in zip(self.sources, self.largest_hands(stage), strict=True):
                if source.problems < needed:
                    raise too_small(source.name, source.problems, needed)
        if len(self.problems) < self.options.problems_per_update:
            raise UsageError(
                f"the data set has {len(self.problems)} problems, but an update needs "
                f"schedule.problems_per_update = {self.options.problems_per_update} different "
                "ones; lower it, or use a data set with more problems"
            )

    def groups(self, stage: int) -> Iterator[Draw]:
        """Yield (problem, occurrence) for each group of `stage`, batch by batch."""
        count = self.options.batches(stage) * self.options.problems_per_update
        return islice(self.stream(stage), count)

    def stream(self, stage: int) -> Iterator[Draw]:
        """Yield the groups of `stage`, then those that follow in the epochs, without end.

        Groups that follow may need one more of a source than it has; then they lack it.
        """
        size, sources = self.options.problems_per_update, self.parts
        firsts = accumulate((source.problems for source in sources), initial=0)
        epochs = [
            Epochs(source, self.seed, number, first, position)
            for number, (source, first, position) in enumerate(
                zip(sources, firsts, positions(self.options, sources, stage), strict=False)
            )
        ]
        order = interleaved(weights_in(sources, stage))
        while True:
            batch = list(islice(order, size))
            hands = {n: iter(epochs[n].hand(groups)) for n, groups in Counter(batch).items()}
            for number in batch:
                for index, occurrence in islice(hands[number], 1):
                    yield self.problems[index], occurrence

    def largest_hands(self, stage: int) -> list[int]:
        """Return the most groups of each source that an update of `stage` needs."""
        size = self.options.problems_per_update
        hands = dealt(weights_in(self.parts, stage), self.options.batches(stage), size)
        return [max(groups) for groups in zip(*hands, strict=True)]

    @property
    def parts(self) -> tuple[Source, ...]:
        """Return the sources, or the data set as one."""
        return self.sources or (Source(len(self.problems)),)


def schedule_of(config: RunConfig, problems: Sequence[Problem]) -> Schedule:
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
    return Schedule(config.schedule, problems, config.seed, sources)


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
    # Not hash(), which differs from process to process.
    digest = hashlib.blake2b("\0".join(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


# The order in which groups are drawn from several sources, each with a weight.
#
# A source's problems come in epochs, each a fresh permutation. The groups of an update are dealt
# from one epoch: if it has too few problems left, the next one begins, so no problem repeats
# within an update. A data set without sources is a single source.


Position = tuple[int, int]  # an epoch, and how many of its problems have been dealt


@dataclass(frozen=True)
class Source:
    """A source of `problems` problems with its weight in each stage (see ByStage)."""

    problems: int
    name: str = ""
    weights: tuple[float, ...] = (1.0,)


def interleaved(weights: Sequence[float]) -> Iterator[int]:
    """Yield indices of `weights` without end, each as often as its weight asks for.

    Of any first n, index i has n w_i / sum(w) within 1 - 1 / (2k - 2), where k is the number of
    weights above 0. This is the algorithm of R. Tijdeman, The chairman assignment problem (1980):
    of those that are due, take the one with the earliest deadline.
    """
    positive = [index for index, weight in enumerate(weights) if weight > 0]
    if len(positive) == 1:
        yield from repeat(positive[0])
    exact = {index: Fraction(str(weights[index])) for index in positive}
    unit = math.lcm(*(weight.denominator for weight in exact.values()))
    parts = {index: int(weight * unit) for index, weight in exact.items()}
    total, slack = sum(parts.values()), 2 * len(positive) - 2
    drawn = dict.fromkeys(positive, 0)

    def deadline(index: int) -> tuple[Fraction, int]:
        return Fraction(slack * (drawn[index] + 1) - 1, parts[index]), index

    for n in count(1):
        due = (i for i in positive if slack * (n * parts[i] - drawn[i] * total) >= total)
        chosen = min(due, key=deadline)
        drawn[chosen] += 1
        yield chosen


def too_small(source: str, problems: int, needed: int) -> UsageError:
    """Return the error for a source with fewer problems than an update needs of it."""
    return UsageError(
        f"the source {source!r} has {problems} problems to train on, but an update draws {needed} "
        "different ones of it; lower schedule.problems_per_update or its weight, or use more "
        "problems"
    )


@lru_cache(maxsize=256)
def dealt(weights: tuple[float, ...], batches: int, size: int) -> list[tuple[int, ...]]:
    """Return how many groups of each source are in each of a stage's batches of `size` groups."""
    stream = interleaved(weights)
    hands = [list(islice(stream, size)) for _ in range(batches)]
    return [tuple(hand.count(index) for index in range(len(weights))) for hand in hands]


def weights_in(sources: Sequence[Source], stage: int) -> tuple[float, ...]:
    """Return the weight of each source in `stage`."""
    return tuple(at_stage(source.weights, stage) for source in sources)


@lru_cache(maxsize=64)
def positions(options: ScheduleOptions, sources: tuple[Source, ...], stage: int) -> list[Position]:
    """Return where each source is when `stage` begins: after the batches of the stages before."""
    found = [(0, 0)] * len(sources)
    for earlier in range(stage):
        weights = weights_in(sources, earlier)
        for hand in dealt(weights, options.batches(earlier), options.problems_per_update):
            for index, groups in enumerate(hand):
                epoch, place = found[index]
                fits = place + groups <= sources[index].problems
                found[index] = (epoch, place + groups) if fits else (epoch + 1, groups)
    return found


class Epochs:
    """The epochs of source number `number`, from `position` on.

    Problems are numbered from `first`.
    """

    def __init__(
        self, source: Source, seed: int, number: int, first: int, position: Position
    ) -> None:
        self._source, self._seed, self._number, self._first = source, seed, number, first
        self._epoch, dealt_already = position
        self._left = self._order(dealt_already)

    def hand(self, size: int) -> list[tuple[int, int]]:
        """Return (index of the problem, epoch) of the next `size` groups, of different problems.

        A source with fewer gives all that it has.
        """
        if len(self._left) < size:
            self._epoch += 1
            self._left = self._order(0)
        hand, self._left = self._left[:size], self._left[size:]
        return [(int(index), self._epoch) for index in hand]

    def _order(self, start: int) -> NDArray[np.int64]:
        # numpy pads a seed with zeros, so the first source has the order of a lone data set
        rng = np.random.default_rng((self._seed, self._epoch, self._number))
        return rng.permutation(self._source.problems)[start:] + self._first
