"""The nouns of the framework: plain records that every layer shares. No torch here.

P prompt tokens, T response tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Message = dict[str, str]  # {"role": "user", "content": "..."}: one turn of a conversation


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its reference answer. `id` is unique within a data set.

    `prompt` is text, or a conversation in the order of its turns. `columns` are the data set's
    other columns, as they were read: what reward functions are called with.
    """

    id: str
    prompt: str | tuple[Message, ...]
    answer: str
    columns: Mapping[str, Any] = field(default_factory=dict)


class FinishReason(StrEnum):
    """Why an engine stopped a response."""

    STOP = "stop"  # the end-of-sequence token was sampled; it is the response's last id
    LENGTH = "length"  # max_new_tokens reached: the response is truncated


@dataclass(frozen=True, slots=True)
class Answer:
    """A response as it is judged."""

    problem: Problem
    text: str  # decoded, without special tokens
    ids: Sequence[int]  # as sampled, with the end-of-sequence token where there is one
    finish_reason: FinishReason


class Status(StrEnum):
    """What became of a rollout's scoring. A failure is a status, never a reward of 0."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TRUNCATED = "truncated"
    SKIPPED = "skipped"  # no reward function had a reward to give
    TIMEOUT = "timeout"
    ERROR = "error"

    @property
    def failed(self) -> bool:
        """True where scoring broke down; too many of them stop a run."""
        return self in (Status.TIMEOUT, Status.ERROR)

    @property
    def rewarded(self) -> bool:
        """False where no reward is known: the rollout is left out of its group's statistics."""
        return not (self.failed or self is Status.SKIPPED)


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

    `reward` is None exactly where not `status.rewarded`; `parts` says more (a failure's reason, the
    components of a composed reward) and must be JSON.
    """

    status: Status
    reward: float | None
    parts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status.rewarded == (self.reward is None):
            raise ValueError(
                f"a score with status {self.status.value!r} has reward {self.reward!r}: a reward "
                "is None exactly where none is known (skipped, timeout, error)"
            )
