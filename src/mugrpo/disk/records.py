"""The plain records that every layer shares: problems, rollouts, scores. They do not need torch.

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
    """A question with its reference answer. `id` is unique within a data set.

    `prompt` is text, or the turns of a conversation in order: ({"role": ..., "content": ...}, ...).
    `columns` holds the other columns of the data set, unchanged. Reward functions are called with
    them. `source` names the source of a mixture that the problem comes from.
    """

    id: str
    prompt: str | tuple[Message, ...]
    answer: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None


class FinishReason(StrEnum):
    """The reason that a response ended: STOP (it is whole) or LENGTH (it is truncated)."""

    STOP = "stop"  # the end-of-sequence token was sampled; it is the response's last id
    LENGTH = "length"  # max_new_tokens reached: the response is truncated


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a reward function may know of the run, under TRL's names where TRL has it."""

    global_step: int  # updates that the policy had received when it sampled the response
    max_steps: int  # updates of the whole run
    stage: int | None  # None in an evaluation


@dataclass(frozen=True, slots=True)
class Answer:
    """A response in the form that is judged: decoded `text`, and `ids` as sampled."""

    problem: Problem
    text: str  # decoded, without special tokens
    ids: Sequence[int]  # as sampled, with the end-of-sequence token if there is one
    finish_reason: FinishReason
    state: TrainerState | None = None  # None outside of a run
    environment_reward: float | None = None  # its environment's own, if it has one


class Status(StrEnum):
    """The outcome of scoring a rollout.

    A failure of the judge is a status and never a number. What it cannot finish has reward 0.
    "timeout", a failure in runs of earlier versions, is read as ERROR.
    """

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TRUNCATED = "truncated"
    UNFINISHED = "unfinished"  # the judge ran out of time, memory or stack on it
    SKIPPED = "skipped"  # no reward function gave it a reward
    ERROR = "error"

    @classmethod
    def _missing_(cls, value: object) -> Status | None:
        return cls.ERROR if value == "timeout" else None

    @property
    def failed(self) -> bool:
        """Whether there is no verdict. Too many failures stop a run."""
        return self in (Status.UNFINISHED, Status.SKIPPED, Status.ERROR)

    @property
    def rewarded(self) -> bool:
        """Whether the reward is known. Otherwise its group's statistics leave the rollout out.

        It is 0 for an unfinished response: being hard to judge must never pay.
        """
        return self not in (Status.SKIPPED, Status.ERROR)


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The key of a group: a problem, and the epoch in which the run draws it."""

    problem_id: str
    occurrence: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """A sampled response, with everything that optimization needs to know about its sampling.

    P prompt tokens, T response tokens: `prompt_ids` [P] and `response_ids` [T] are int32,
    `behavior_logprobs` [T] float32, in nats. The last response id is the end-of-sequence token if
    it was sampled. A rollout is identified by problem, occurrence (the epoch in which the problem
    is drawn) and sample (its index in the group).
    """

    problem_id: str
    occurrence: int
    sample: int  # index within the group, 0..G-1
    seed: int  # unsigned 64 bits, see schedule.rollout_seed
    prompt_ids: NDArray[np.int32]  # [P]
    response_ids: NDArray[np.int32]  # [T], with the end-of-sequence token if it was sampled
    behavior_logprobs: NDArray[np.float32]  # [T], log_softmax(logits / temperature) at each id
    finish_reason: FinishReason
    temperature: float
    policy_step: int  # updates that the behavior policy had received

    @property
    def group(self) -> GroupKey:
        """Return what the responses of a group have in common: the problem and its occurrence."""
        return GroupKey(self.problem_id, self.occurrence)


@dataclass(frozen=True, slots=True)
class Score:
    """The verdict on one rollout.

    `reward` is None if and only if `status.rewarded` is false; anything else raises ValueError.
    `parts` holds the details (the reason for a failure, the components of a composed reward) and
    must be JSON. `logged` holds values by the name of the metric that is their mean over a stage or
    an evaluation. Sums over a shard are kept, the values are not.
    """

    status: Status
    reward: float | None
    parts: dict[str, Any] = field(default_factory=dict)
    logged: Mapping[str, Sequence[float]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.status.rewarded == (self.reward is None):
            raise ValueError(
                f"a score with status {self.status.value!r} has reward {self.reward!r}: the reward "
                "must be None for skipped and error, and a number for any other status"
            )
