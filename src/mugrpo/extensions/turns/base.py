"""The interface of environments: a message of the model in, messages for the model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mugrpo.disk.records import Message


@dataclass(frozen=True, slots=True)
class Reply:
    """What the environment of a rollout answers.

    `messages` are appended to the conversation, with role "tool" or "user". Those that reply to
    `begin` have role "user"; their text is appended to that of the prompt's last message, as TRL
    does. If the environment is `done`, the rollout ends; `reward` is the environment's own, or None
    if it has none. If it has failed (it hung, died or raised), it is `done`, and `failure` says
    how; `unfinished` if it took too much time, memory or stack.
    """

    messages: Sequence[Message] = ()
    done: bool = False
    reward: float | None = None
    failure: str | None = None
    unfinished: bool = False
    logged: Mapping[str, float] = field(default_factory=dict)  # values by the name of their metric


class Environments(Protocol):
    """The environments of many rollouts at once, each known by its rollout's number."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The JSON schemas of the tools that a chat template tells the model about."""
        ...

    def begin(self, rollout: int, seed: int, row: Mapping[str, Any]) -> None:
        """Reset an environment for `rollout`. It will reply.

        `row` has the columns of its problem, with "prompt" (and "answer").
        """
        ...

    def step(self, rollout: int, message: Message) -> None:
        """Give the environment a whole message of the model, with "tool_calls" if it has any.

        That includes the message of the last turn. It will reply.
        """
        ...

    def end(self, rollout: int) -> None:
        """Tell the environment that the model says no more: it has no tokens or turns left.

        It will reply, with `done`.
        """
        ...

    def replies(self, seconds: float) -> Sequence[tuple[int, Reply]]:
        """Return (rollout, reply) for those that have replied, after at most `seconds`.

        Raises BrokenReward if an environment breaks its contract, and UsageError if it cannot be
        loaded.
        """
        ...

    def close(self) -> None:
        """End the processes in which the environments live."""
        ...
