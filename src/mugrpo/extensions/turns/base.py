"""What environments reply: a message of the model in, messages for the model out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
