"""Environments in this process, whose replies come when a test wants them to."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mugrpo.extensions.turns.base import Reply

Response = Callable[[int, int, Mapping[str, Any] | None], Reply]


class Games:
    """Environments that answer call number k of a rollout with `answer(seed, k, message)`.

    Call 0 is the beginning, whose message is None, as is that of the end. With `late`, replies come
    in another order, and only after some calls of `replies`.
    """

    def __init__(self, answer: Response, *, late: int | None = None, tools: Sequence[Any] = ()):
        self.tools = tools
        self.log: list[tuple[str, int, Any]] = []
        self._answer, self._random = answer, np.random.default_rng(late)
        self._late = late is not None
        self._seeds: dict[int, int] = {}
        self._calls: dict[int, int] = {}
        self._replies: list[tuple[int, Reply]] = []

    def begin(self, rollout: int, seed: int, row: Mapping[str, Any]) -> None:
        assert rollout not in self._seeds, "it has begun already"
        self._seeds[rollout], self._calls[rollout] = seed, 0
        self._call("begin", rollout, row, self._answer(seed, 0, None))

    def step(self, rollout: int, message: Mapping[str, Any]) -> None:
        self._calls[rollout] += 1
        reply = self._answer(self._seeds[rollout], self._calls[rollout], message)
        self._call("step", rollout, message, reply)

    def end(self, rollout: int) -> None:
        self._call("end", rollout, None, Reply(done=True, reward=0.25))

    def replies(self, seconds: float) -> Sequence[tuple[int, Reply]]:
        if not self._late:
            replies, self._replies = self._replies, []
            return replies
        if not self._replies or self._random.random() < 0.5:
            return []
        return [self._replies.pop(int(self._random.integers(len(self._replies))))]

    def close(self) -> None:
        self._seeds, self._replies = {}, []

    def _call(self, name: str, rollout: int, told: Any, reply: Reply) -> None:
        self.log.append((name, rollout, told))
        self._replies.append((rollout, reply))
        if reply.done:
            del self._seeds[rollout]


def counting(seed: int, call: int, message: Mapping[str, Any] | None) -> Reply:
    """Say a sum that depends on the rollout and the turn; one to five turns, then a reward."""
    if call == 0:
        return Reply([{"role": "user", "content": f"{seed % 3}+"}])
    if call > seed % 5:
        return Reply(done=True, reward=call / 8, logged={"calls": float(call)})
    return Reply([{"role": "user", "content": f"{call}-{seed % 4}="}])
