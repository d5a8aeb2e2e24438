"""An engine that takes requests while it works gets the next piece before the last one is done."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mugrpo.disk.records import FinishReason, Problem
from mugrpo.engines.base import Arrivals, Completion, Decoded, Request
from mugrpo.engines.process import RemoteEngine
from mugrpo.rollouts.sampler import Sampler
from mugrpo.rollouts.side_by_side import sampled_shards

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
    """Shards of problems with 9, 1, 1 and with 2, 2, 2 steps, in three slots.

    One after the other they would take 9 + 2 steps, with eight times two slots idle. Here the
    second shard runs beside the long response: nine steps in all.
    """
    engine = Slots()
    shards = [[9, 1, 1], [2, 2, 2]]
    wanted = [
        (number, [(Problem(str(steps), "", ""), 0) for steps in steps_of])
        for number, steps_of in enumerate(shards)
    ]
    done = list(sampled_shards([sampler(engine)], wanted, lambda _: None))
    assert [number for number, _ in done] == [0, 1]
    for number, shard in done:
        assert [-r.behavior_logprobs[0] for r in shard.rollouts] == shards[number]
    assert engine.log == ["took 3 with 1 running"]
    assert len(engine.idle) == 9
    assert engine.idle[:3] == [0, 0, 0]
    assert sum(shard.slots for _, shard in done) == 6
