"""Several samplers share the missing shards: each shard is made once, and all stop together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from mugrpo.disk.errors import Interrupted, RunStopped
from mugrpo.engines.base import Decoded
from mugrpo.rollouts.sampler import Draw, SampledShard
from mugrpo.rollouts.side_by_side import sampled_shards

NOTHING = Decoded((), 0)


@dataclass
class Fake:
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


def test_one_sampler_makes_them_in_order_in_this_thread():
    threads: list[threading.Thread] = []
    shards = sampled_shards(
        [Fake()], missing(3), lambda _: threads.append(threading.current_thread())
    )
    assert [number for number, _ in shards] == [0, 1, 2]
    assert set(threads) == {threading.current_thread()}


def test_an_error_in_one_ends_them_all():
    failing, other = Fake(fails_at=0), Fake(endless=True)
    barrier = threading.Barrier(2)
    failing.barrier = other.barrier = barrier
    before = set(threading.enumerate())
    with pytest.raises(RunStopped, match="no shard 0"):
        list(sampled_shards([failing, other], [(0, [0]), (0, [0])], lambda _: None))
    assert not set(threading.enumerate()) - before


def test_a_signal_ends_them_all():
    samplers = [Fake(endless=True), Fake(endless=True)]

    def interrupted(_: Decoded) -> None:
        raise Interrupted("stopped by SIGTERM")

    with pytest.raises(Interrupted):
        list(sampled_shards(samplers, missing(6), interrupted))
    assert all(s.ended or not s.numbers for s in samplers)
    assert sum(len(s.numbers) for s in samplers) <= 2  # none started another


def test_two_samplers_and_one_shard():
    samplers = [Fake(), Fake()]
    assert [number for number, _ in sampled_shards(samplers, missing(1), lambda _: None)] == [0]
