"""The options of each reward, and of how scores are used."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from mugrpo.config.base import (
    HARMLESS,
    Code,
    Options,
    OwnReward,
    RewardOption,
    members_of,
    one_of,
)
from mugrpo.disk.records import Status


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]


class MathOptions(RewardOption):
    """1 if math-verify, with rules around it, finds the answer equal to the reference, else 0."""

    name: Literal["math"] = "math"
    factory: ClassVar[str] = "mugrpo.rewards.verifiers:math"

    def written(self, reference: str) -> str:
        return reference if r"\boxed" in reference else rf"\boxed{{{reference}}}"


class ExactOptions(RewardOption):
    """1 if the text is the reference answer, apart from white space around it, else 0."""

    name: Literal["exact"] = "exact"
    factory: ClassVar[str] = "mugrpo.rewards.verifiers:exact"


class NumericOptions(RewardOption):
    """1 if the last number in the text is near the reference answer, else 0."""

    name: Literal["numeric"] = "numeric"
    factory: ClassVar[str] = "mugrpo.rewards.verifiers:numeric"
    tolerance: float = Field(1e-6, ge=0)
    """Largest difference that counts as right, times |reference| if that is above 1."""


class RegexOptions(RewardOption):
    """1 if a pattern's last match is the reference answer, else 0."""

    name: Literal["regex"] = "regex"
    factory: ClassVar[str] = "mugrpo.rewards.verifiers:regex"
    pattern: Pattern
    """A Python regular expression. Its first group, or all of it, holds the answer."""


class FunctionOptions(OwnReward):
    """The result of a function of your own, which is called as TRL calls reward functions.

    `f(prompts, completions, completion_ids, **columns)` returns a number or None (no reward from
    this function) for each completion, and may be async. Each column of the data is a list;
    `answer` has the reference answers. `trainer_state`, `log_metric` and `log_extra` are as in TRL
    (docs/rewards.md says what differs). An argument that the function does not take is not passed.
    """

    waits = True
    name: Literal["function"] = "function"
    function: Code
    """Where to find the function: "module:function" or "path/to/file.py:function"."""

    @property
    def file(self) -> Path | None:
        place = self.function.rpartition(":")[0]
        return Path(place) if place.endswith(".py") else None

    @property
    def label(self) -> str:
        return self.function.rpartition(":")[2]


def _table(value: Any) -> Any:
    """Return a reward as a table, given a table, a name, or "module:function"."""
    if isinstance(value, str):
        value = {"function": value} if ":" in value else {"name": value}
    if not isinstance(value, dict):
        return value
    table = {"name": "function", **value} if "function" in value else value
    known = sorted(members_of(Reward))
    if table.get("name") not in known:
        raise ValueError(
            f"no such reward {table.get('name')!r}: choose among {', '.join(known)}, or name a "
            'function of your own as "module:function" or "path/to/file.py:function"'
        )
    return table


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, str | dict | RewardOption) else value


def _sensible(rewards: tuple[RewardOption, ...]) -> tuple[RewardOption, ...]:
    if rewards and not any(reward.weight for reward in rewards):
        raise ValueError("every weight is 0: no answer could get a reward")
    if sum(reward.decides and not reward.verifies for reward in rewards) > 1:
        raise ValueError("several rewards are the verdict; leave verdict = true to one of them")
    twice = [label for label, times in Counter(r.label for r in rewards).items() if times > 1]
    if twice or any(reward.label == "answer" for reward in rewards):
        raise ValueError(
            f"{twice[0] if twice else 'answer'!r} cannot name two parts of a score: each reward is "
            "a part, and 'answer' is the answer that was read; rename a function"
        )
    return rewards


if TYPE_CHECKING:
    Reward = RewardOption
    Rewards = tuple[RewardOption, ...]
else:
    _RewardTable = one_of(
        "rewards",
        MathOptions,
        ExactOptions,
        NumericOptions,
        RegexOptions,
        FunctionOptions,
    )
    Reward = Annotated[
        _RewardTable, BeforeValidator(_table, json_schema_input_type=_RewardTable | str)
    ]
    Rewards = Annotated[
        tuple[Reward, ...],
        BeforeValidator(_several, json_schema_input_type=tuple[Reward, ...] | Reward),
        AfterValidator(_sensible),
    ]


class RewardOptions(Options):
    """How the optimizer uses scores."""

    truncated: Literal["zero", "masked", "scored"] = "zero"
    """Give a truncated response reward 0 without judging it, leave it out of its group and of the
    loss, or judge it like any other."""
    overlong_buffer: float = Field(0.0, ge=0, le=1)
    """Final share of max_new_tokens, over which a penalty on the reward grows from 0 to 1 (DAPO's
    soft overlong punishment). 0 turns it off."""
    failure_limit: float = Field(0.1, ge=0, le=1, json_schema_extra=HARMLESS)
    """Stop if a larger share of a shard's responses has no verdict: errors, unfinished ones, and
    those that no reward function gave a number."""

    pays_for_nothing: bool = Field(False, json_schema_extra=HARMLESS)
    """Let `mugrpo check` accept rewards that give an answer which says nothing, such as an empty
    one or the question itself, as much as the right one."""

    def counts(self, status: Status) -> bool:
        """Return whether a response counts in its group's statistics and in the loss."""
        masked = status is Status.TRUNCATED and self.truncated == "masked"
        return status.rewarded and not masked
