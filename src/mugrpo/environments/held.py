"""Environments in this process, for code that exists nowhere else, such as a script's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mugrpo.config.environment import EnvironmentOptions
from mugrpo.disk.errors import BrokenReward
from mugrpo.environments.base import Reply
from mugrpo.environments.host import Host
from mugrpo.rewards.functions import Held


class HeldEnvironments:
    """Answers as `EnvironmentPool` does, but at once and without the workers' limits.

    The classes and functions of a script cannot be sent to a worker without pickling them.
    """

    def __init__(self, options: EnvironmentOptions, held: Held, *, own_reward: bool) -> None:
        self._make = lambda: Host(options, held, own_reward=own_reward)
        self._host: Host | None = None
        self._places: dict[int, tuple[int, int]] = {}  # (seed, calls so far)
        self._replies: list[tuple[int, Reply]] = []

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self._loaded().schemas()

    def begin(self, rollout: int, seed: int, row: Mapping[str, Any]) -> None:
        self._places[rollout] = seed, 0
        self._answer(rollout, {"call": "begin", "row": row})

    def step(self, rollout: int, message: Mapping[str, Any]) -> None:
        self._answer(rollout, {"call": "step", "message": message})

    def end(self, rollout: int) -> None:
        self._answer(rollout, {"call": "end"})

    def replies(self, seconds: float) -> Sequence[tuple[int, Reply]]:
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        """Forget all rollouts: no process was started."""
        self._host, self._places, self._replies = None, {}, []

    def _loaded(self) -> Host:
        self._host = self._host or self._make()
        return self._host

    def _answer(self, rollout: int, call: Mapping[str, Any]) -> None:
        seed, number = self._places[rollout]
        self._places[rollout] = seed, number + 1
        place = {"rollout": rollout, "seed": seed, "number": number}
        answer = self._loaded().answer({**place, **call})
        if "broken" in answer:
            raise BrokenReward(
                f"{answer['broken']}; fix it (--force accepts the changed environment)"
            )
        reply = Reply(**answer["reply"])
        self._replies.append((rollout, reply))
        if reply.done:
            del self._places[rollout]
