"""Several samplers share the missing shards, and an engine gets the next piece early."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mugrpo.disk.errors import Interrupted, RunStopped
from mugrpo.disk.records import FinishReason, Problem, Rollout
from mugrpo.engines.base import Arrivals, Completion, Decoded, Request
from mugrpo.engines.process import RemoteEngine
from mugrpo.rollouts.sampler import PieceName, SampledShard, Sampler
from mugrpo.rollouts.side_by_side import sampled_shards
from tests.cases import table

NOTHING = Decoded((), 0)


class Plain:
    """A sampler that samples one piece after another, by its method `sample_shard`."""

    def sample_pieces(self, take: Any, on_decoded: Any) -> Iterator[tuple[PieceName, SampledShard]]:
        while (piece := take()) is not None:
            yield piece[0], self.sample_shard(piece[1], on_decoded)  # type: ignore[attr-defined]


@dataclass
class Fake(Plain):
    """A sampler that makes empty shards and records their numbers."""

    barrier: threading.Barrier | None = None
    fails_at: int | None = None
    endless: bool = False
    numbers: list[int] = field(default_factory=list)
    ended: bool = False

    def sample_shard(self, groups: Any, on_decoded: Any) -> SampledShard:
        (number,) = groups
        self.numbers.append(number)
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


def missing(count: int) -> dict:
    return {number: [number] for number in range(count)}


def test_every_shard_is_made_once_by_whichever_sampler_is_free():
    """Two samplers that wait for each other make six shards in three rounds of two."""
    barrier = threading.Barrier(2)
    samplers = [Fake(barrier), Fake(barrier)]
    heard: list[Decoded] = []
    shards = dict(sampled_shards(samplers, missing(6).items(), heard.append))
    assert {number: shard.slots for number, shard in shards.items()} == {n: n for n in range(6)}
    assert sorted(samplers[0].numbers + samplers[1].numbers) == list(range(6))
    assert [len(s.numbers) for s in samplers] == [3, 3]
    assert heard == [NOTHING] * 6


def test_an_error_in_one_or_a_signal_ends_them_all():
    failing, other = Fake(fails_at=0), Fake(endless=True)
    barrier = threading.Barrier(2)
    failing.barrier = other.barrier = barrier
    before = set(threading.enumerate())
    with pytest.raises(RunStopped, match="no shard 0"):
        list(sampled_shards([failing, other], [(0, [0]), (1, [0])], lambda _: None))
    assert not set(threading.enumerate()) - before
    samplers = [Fake(endless=True), Fake(endless=True)]

    def interrupted(_: Decoded) -> None:
        raise Interrupted("stopped by SIGTERM")

    with pytest.raises(Interrupted):
        list(sampled_shards(samplers, missing(6).items(), interrupted))
    assert all(s.ended or not s.numbers for s in samplers)
    assert sum(len(s.numbers) for s in samplers) <= 2  # none started another


class Pairs(Plain):
    """A sampler that makes two rollouts of each group. A group is its problem's number."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self.barrier = barrier
        self.pieces: list[list[int]] = []

    def sample_shard(self, groups: Any, on_decoded: Any) -> SampledShard:
        self.pieces.append(list(groups))
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
    wanted = {7: list(range(groups))}
    ((number, shard),) = sampled_shards(crew, wanted.items(), lambda _: None, pieces=samplers)
    assert number == 7
    assert [(int(r.problem_id), r.sample) for r in shard.rollouts] == [
        (group, sample) for group in range(groups) for sample in range(2)
    ]
    assert (shard.slots, shard.seconds) == (groups, len(pieces[0]))
    assert sorted(piece for sampler in crew for piece in sampler.pieces) == pieces


IDS = np.array([5], np.int32)


class Slots(RemoteEngine):
    """An engine with three slots. A response to prompt p takes p steps and has the logprob -p."""

    exact = False  # type: ignore[assignment]

    def __init__(self) -> None:
        self.idle: list[int] = []  # free slots in each step
        self.log: list[str] = []
        self.top_ps: list[float] = []  # of each call

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        max_new_tokens: int,
        top_p: float = 1.0,
        more: Iterable[Sequence[Request]] = (),
    ) -> Iterator[Decoded]:
        self.top_ps.append(top_p)
        arrivals, running = Arrivals(requests, more), {}
        queue = [(i, int(r.prompt_ids[0])) for i, r in arrivals.take().items()]
        while queue or running:
            while len(running) < 3 and queue:
                index, steps = queue.pop(0)
                running[index] = [steps, steps]
            self.idle.append(3 - len(running))
            for state in running.values():
                state[0] -= 1
            ended = [index for index, (left, _) in running.items() if not left]
            completions = [(i, self._response(running.pop(i)[1])) for i in ended]
            yield Decoded(completions, len(ended))
            if len(queue) + len(running) < 3 and (added := arrivals.take()):
                self.log.append(f"took {len(added)} with {len(running)} running")
                queue += [(i, int(r.prompt_ids[0])) for i, r in added.items()]

    @staticmethod
    def _response(steps: int) -> Completion:
        return Completion(IDS, np.array([-float(steps)], np.float32), FinishReason.STOP)


def sampler(engine: Slots, **sampling: float) -> Sampler:
    return Sampler(
        engine,
        lambda problem: np.array([int(problem.id)], np.int32),  # type: ignore[arg-type]
        seed=0,
        stage="0",
        group_size=1,
        temperature=1.0,
        max_new_tokens=8,
        policy_step=0,
        **sampling,  # type: ignore[arg-type]
    )


def test_no_slot_is_idle_while_the_last_responses_of_a_shard_run():
    """Shards of problems with 9, 1, 1 and with 2, 2, 2 steps, in three slots. One after the other
    they would take 9 + 2 steps, with eight times two slots idle. Here the second shard runs beside
    the long response: nine steps in all."""
    engine = Slots()
    shards = [[9, 1, 1], [2, 2, 2]]
    wanted = {
        number: [(Problem(str(steps), "", ""), 0) for steps in steps_of]
        for number, steps_of in enumerate(shards)
    }
    done = list(sampled_shards([sampler(engine)], wanted.items(), lambda _: None))
    assert [number for number, _ in done] == [0, 1]
    for number, shard in done:
        assert [-r.behavior_logprobs[0] for r in shard.rollouts] == shards[number]
    assert engine.log == ["took 3 with 1 running"]
    assert len(engine.idle) == 9
    assert engine.idle[:3] == [0, 0, 0]
    assert sum(shard.slots for _, shard in done) == 6
