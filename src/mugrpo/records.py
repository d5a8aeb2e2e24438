"""The nouns of the framework: plain records that every layer shares. No torch here.

P prompt tokens, T response tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its reference answer. `id` is unique within a data set."""

    id: str
    prompt: str
    answer: str


class FinishReason(StrEnum):
    """Why an engine stopped a response."""

    STOP = "stop"  # the end-of-sequence token was sampled; it is the response's last id
    LENGTH = "length"  # max_new_tokens reached: the response is truncated


class Status(StrEnum):
    """What became of a rollout's scoring. A failure is a status, never a reward of 0."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    ERROR = "error"

    @property
    def failed(self) -> bool:
        """True where no reward is known: the rollout is left out of its group's statistics."""
        return self in (Status.TIMEOUT, Status.ERROR)


@dataclass(frozen=True, slots=True)
class GroupKey:
    """What names a group: a problem and the epoch in which the run has drawn it."""

    problem_id: str
    occurrence: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled response with everything optimization needs to know of its making."""

    problem_id: str
    occurrence: int
    sample: int  # index within the group, 0..G-1
    seed: int  # unsigned 64 bits, see schedule.rollout_seed
    prompt_ids: NDArray[np.int32]  # [P]
    response_ids: NDArray[np.int32]  # [T], with the end-of-sequence token where one was sampled
    behavior_logprobs: NDArray[np.float32]  # [T], log_softmax(logits / temperature) at each id
    finish_reason: FinishReason
    temperature: float
    policy_step: int  # updates the behavior policy had seen

    @property
    def group(self) -> GroupKey:
        return GroupKey(self.problem_id, self.occurrence)


@dataclass(frozen=True, slots=True)
class Score:
    """The verdict on one rollout.

    `reward` is None exactly where `status.failed`; `parts` says more (a failure's reason, the
    components of a composed reward) and must be JSON.
    """

    status: Status
    reward: float | None
    parts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status.failed != (self.reward is None):
            raise ValueError(
                f"a score with status {self.status.value!r} has reward {self.reward!r}: "
                "a reward is None exactly where scoring failed (timeout, error)"
            )
