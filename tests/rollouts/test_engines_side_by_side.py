"""Several samplers share the missing shards: each shard is made once, and all stop together."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from mugrpo.disk.errors import Interrupted, RunStopped
from mugrpo.disk.records import FinishReason, Rollout
from mugrpo.engines.base import Decoded
from mugrpo.rollouts.sampler import Draw, Piece, PieceName, SampledShard
from mugrpo.rollouts.side_by_side import sampled_shards
from tests.cases import table

NOTHING = Decoded((), 0)


class Plain:
    """A sampler that samples one piece after another."""

    def sample_pieces(
        self, take: Callable[[], Piece | None], on_decoded: Callable[[Decoded], None]
    ) -> Iterator[tuple[PieceName, SampledShard]]:
        while (piece := take()) is not None:
            yield piece[0], self.sample_shard(piece[1], on_decoded)

    def sample_shard(
        self, groups: Sequence[Draw], on_decoded: Callable[[Decoded], None]
    ) -> SampledShard:
        raise NotImplementedError


@dataclass
class Fake(Plain):
    """A sampler that makes empty shards and records their numbers."""

    barrier: threading.Barrier | None = None
    fails_at: int | None = None
    endless: bool = False
    numbers: list[int] = field(default_factory=list)
    ended: bool = False

    def sample_shard(
        self, groups: Sequence[Draw], on_decoded: Callable[[Decoded], None]
    ) -> SampledShard:
        (number,) = groups
        self.numbers.append(number)  # type: ignore[arg-type]
        if self.barrier is not None:
            self.barrier.wait(timeout=30)
        if number == self.fails_at:
            raise RunStopped(f"no shard {number}")
        try:
            on_decoded(NOTHING)
            while self.endless:
                on_decoded(NOTHING)
        finally:
            self.ended = True
        return SampledShard([], slots=number, seconds=0.0)  # type: ignore[arg-type]


def missing(count: int) -> list:
    return [(number, [number]) for number in range(count)]


def test_every_shard_is_made_once_by_whichever_sampler_is_free():
    """Two samplers that wait for each other make six shards in three rounds of two."""
    barrier = threading.Barrier(2)
    samplers = [Fake(barrier), Fake(barrier)]
    heard: list[Decoded] = []
    shards = dict(sampled_shards(samplers, missing(6), heard.append))
    assert {number: shard.slots for number, shard in shards.items()} == {n: n for n in range(6)}
    assert sorted(samplers[0].numbers + samplers[1].numbers) == list(range(6))
    assert [len(s.numbers) for s in samplers] == [3, 3]
    assert heard == [NOTHING] * 6


def test_an_error_in_one_ends_them_all():
    failing, other = Fake(fails_at=0), Fake(endless=True)
    barrier = threading.Barrier(2)
    failing.barrier = other.barrier = barrier
    before = set(threading.enumerate())
    with pytest.raises(RunStopped, match="no shard 0"):
        list(sampled_shards([failing, other], [(0, [0]), (1, [0])], lambda _: None))
    assert not set(threading.enumerate()) - before


def test_a_signal_ends_them_all():
    samplers = [Fake(endless=True), Fake(endless=True)]

    def interrupted(_: Decoded) -> None:
        raise Interrupted("stopped by SIGTERM")

    with pytest.raises(Interrupted):
        list(sampled_shards(samplers, missing(6), interrupted))
    assert all(s.ended or not s.numbers for s in samplers)
    assert sum(len(s.numbers) for s in samplers) <= 2  # none started another


class Pairs(Plain):
    """A sampler that makes two rollouts of each group. A group is its problem's number."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self.barrier = barrier
        self.pieces: list[list[int]] = []

    def sample_shard(
        self, groups: Sequence[Draw], on_decoded: Callable[[Decoded], None]
    ) -> SampledShard:
        self.pieces.append(list(groups))  # type: ignore[arg-type]
        self.barrier.wait(timeout=30)  # all samplers have work at the same time
        empty = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32)
        rollouts = [
            Rollout(str(group), 0, sample, 0, *empty, FinishReason.STOP, 1.0, 0)
            for group in groups
            for sample in range(2)
        ]
        return SampledShard(rollouts, len(groups), float(len(groups)))


@table(
    ("groups", "samplers", "pieces"),
    [(5, 2, [[0, 2, 4], [1, 3]]), (5, 3, [[0, 3], [1, 4], [2]]), (2, 2, [[0], [1]]), (1, 1, [[0]])],
)
def test_several_samplers_share_one_shard_whose_rollouts_come_back_in_order(
    groups: int, samplers: int, pieces: list[list[int]]
):
    barrier = threading.Barrier(samplers)
    crew = [Pairs(barrier) for _ in range(samplers)]
    wanted = [(7, list(range(groups)))]
    ((number, shard),) = sampled_shards(crew, wanted, lambda _: None, pieces=samplers)
    assert number == 7
    assert [(int(r.problem_id), r.sample) for r in shard.rollouts] == [
        (group, sample) for group in range(groups) for sample in range(2)
    ]
    assert (shard.slots, shard.seconds) == (groups, len(pieces[0]))
    assert sorted(piece for sampler in crew for piece in sampler.pieces) == pieces
