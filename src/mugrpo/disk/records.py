"""The plain records that every layer shares: problems, rollouts, scores. They do not need torch.

P prompt tokens, T response tokens.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.errors import UsageError

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}, perhaps with "tool_calls"


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with its reference answer. `id` is unique within a data set.

    `prompt` is text, or the turns of a conversation in order: ({"role": ..., "content": ...}, ...),
    with all other keys that the data gives them.
    `columns` holds the other columns of the data set, unchanged. Reward functions are called with
    them. `source` names the source of a mixture that the problem comes from.
    """

    id: str
    prompt: str | tuple[Message, ...]
    reference: str
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
class GroupKey:
    """The key of a group: a problem, and the epoch in which the run draws it."""

    problem_id: str
    occurrence: int


@dataclass(frozen=True, slots=True)
class Response:
    """A response in the form that is judged: decoded `text`, and `ids` as sampled."""

    problem: Problem
    text: str  # decoded, without the tokens of end-of-sequence and padding
    ids: Sequence[int]  # as sampled, with the end-of-sequence token if there is one
    finish_reason: FinishReason
    state: TrainerState | None = None  # None outside of a run
    environment_reward: float | None = None  # its environment's own, if it has one
    messages: Sequence[Mapping[str, Any]] | None = None  # of all its turns, None without turns
    group: GroupKey | None = None  # rewards get a whole group at once, None: a response alone


class Status(StrEnum):
    """The outcome of scoring a rollout.

    A failure of the judge is a status and never a number. What it cannot finish has reward 0.
    """

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    GRADED = "graded"  # it has a reward, and no reward says whether it is right
    TRUNCATED = "truncated"
    UNFINISHED = "unfinished"  # the judge ran out of time, memory or stack on it
    SKIPPED = "skipped"  # no reward function gave it a reward
    ERROR = "error"

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


@dataclass(frozen=True)
class Outcome:
    """What an environment has said about a rollout with turns."""

    reward: float | None = None
    failure: str | None = None  # the reason, if the environment has failed
    unfinished: bool = False  # whether that is the response's fault
    logged: Mapping[str, float] = field(default_factory=dict)  # name -> value
    messages: Sequence[Mapping[str, Any]] | None = None  # after the prompt, as the model saw them


@dataclass(frozen=True, slots=True)
class Rollout:
    """A sampled response, with everything that optimization needs to know about its sampling.

    P prompt tokens, T response tokens: `prompt_ids` [P] and `response_ids` [T] are int32,
    `behavior_logprobs` [T] float32, in nats. The last response id is the end-of-sequence token if
    it was sampled. A rollout is identified by problem, occurrence (the epoch in which the problem
    is drawn) and sample (its index in the group).

    With turns, the response also holds what an environment said between the model's turns. `turns`
    are the indices in the response at which the model's turns begin. `loss_mask` is true on the
    tokens that the model sampled; the behavior logprobs of the others are 0. `environment` is what
    the environment has said about the whole. All three are None without turns.
    """

    problem_id: str
    occurrence: int  # the epoch in which the problem is drawn
    sample: int  # index within the group, 0..G-1
    seed: int  # unsigned 64 bits, see schedule.rollout_seed
    prompt_ids: NDArray[np.int32]  # [P]
    response_ids: NDArray[np.int32]  # [T], with the end-of-sequence token if it was sampled
    behavior_logprobs: NDArray[np.float32]  # [T], log_softmax(logits / temperature) at each id
    finish_reason: FinishReason  # "stop" or "length"
    temperature: float
    policy_step: int  # updates that the behavior policy had received
    loss_mask: NDArray[np.bool_] | None = None  # [T], whether the model sampled the token
    turns: NDArray[np.int32] | None = None  # where the model's turns begin, ascending
    environment: Outcome | None = None  # its reward, failure, logged values and messages

    @property
    def sampled(self) -> NDArray[np.bool_] | slice:
        """Return an index of the tokens that the model sampled, for arrays [T]."""
        return slice(None) if self.loss_mask is None else self.loss_mask

    @property
    def sampled_tokens(self) -> int:
        """Return the number of tokens that the model sampled."""
        return len(self.response_ids) if self.loss_mask is None else int(self.loss_mask.sum())

    @property
    def fault(self) -> str | None:
        """Return why it cannot be trained on, or None."""
        ids, logprobs, mask = self.response_ids, self.behavior_logprobs, self.loss_mask
        if len(ids) != len(logprobs) or len(ids) == 0:
            return (
                f"{len(ids)} response ids with {len(logprobs)} logprobs; a response needs at least "
                "one id, and one logprob for each"
            )
        if mask is None and self.turns is None:
            return None
        if mask is None or self.turns is None or len(mask) != len(ids):
            return "turns need a loss mask with an entry for each response id, and their beginnings"
        starts = self.turns
        ascending = len(starts) > 0 and (np.diff(starts) > 0).all()
        if not ascending or starts[0] < 0 or starts[-1] >= len(ids):
            return f"turns begin at ascending indices of the {len(ids)} response ids"
        if not mask.any() or not mask[starts].all() or logprobs[~mask].any():
            return "a turn begins with a sampled id, and the logprobs of other ids must be 0"
        return None

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


def text_of(ids: Iterable[int], tokenizer: Any) -> str:
    """Return sampled ids as text, without the tokens of end-of-sequence and padding.

    Other special tokens stay, such as "<think>", which rewards may look for.
    """
    silent = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    text: str = tokenizer.decode([int(token) for token in ids if token not in silent])
    return text


def outcome_from_text(text: str | None) -> Outcome | None:
    """Return the outcome that a shard holds as JSON. Raises ValueError if it is none."""
    try:
        outcome = None if text is None else Outcome(**json.loads(text))
        if outcome is None or _is_outcome(outcome):
            return outcome
        error = "a value of another type, or no finite number"
    except (TypeError, RecursionError, OverflowError) as other:
        error = str(other)
    raise ValueError(f"{text:.100} is not an outcome of an environment ({error})") from None


def _is_outcome(outcome: Outcome) -> bool:
    """Return whether the fields have their types, which another program may not have known."""
    numbers = [0 if outcome.reward is None else outcome.reward, *dict(outcome.logged).values()]
    messages = [{}] if outcome.messages is None else outcome.messages
    return (
        all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
        and isinstance(outcome.failure, str | None)
        and isinstance(outcome.unfinished, bool)
        and isinstance(messages, list)
        and all(isinstance(message, dict) for message in messages)
    )


@dataclass(frozen=True)
class Part:
    """The share of a stage that one of several processes does: each `count`-th of its shards."""

    number: int = 0
    count: int = 1

    @classmethod
    def of(cls, text: str) -> "Part":
        """Return the part that `text` names, as "3/16". Raises UsageError if it names none."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
            raise UsageError(f"--part {text}: write K/N with K from 0 to N - 1, such as 3/16")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


WHOLE = Part()
