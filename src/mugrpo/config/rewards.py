"""The options of each reward, and of the worker processes that judge answers."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, field_validator

from mugrpo.config.options import HARMLESS, NamedOptions, Options, absolute


class RewardOption(NamedOptions):
    """One of the rewards whose weighted sum an answer gets."""

    weight: float = 1.0
    """What this reward is multiplied with in the sum."""

    @property
    def label(self) -> str:
        """The name that this reward has in a score's parts; no two rewards share one."""
        return self.name


class MathOptions(RewardOption):
    """1 where math-verify finds the answer equal to the reference, else 0."""

    name: Literal["math"] = "math"
    """Which reward."""
    strict: bool = True
    """Refuse what math-verify matches loosely: x=7=12 for 12, {1,2} for (1,2), several boxes."""


class ExactOptions(RewardOption):
    """1 where the text is the reference answer, but for blanks around it, else 0."""

    name: Literal["exact"] = "exact"
    """Which reward."""
    ignore_case: bool = False
    """Take capital and small letters as the same."""


class NumericOptions(RewardOption):
    """1 where the last number in the text is near the reference answer, else 0."""

    name: Literal["numeric"] = "numeric"
    """Which reward."""
    tolerance: float = Field(1e-6, ge=0)
    """Largest difference that is right, relative to the reference where that is above 1."""


class RegexOptions(RewardOption):
    """1 where a pattern's last match is the reference answer, else 0."""

    name: Literal["regex"] = "regex"
    """Which reward."""
    pattern: str
    """A regular expression of Python's; its first group, or all of it, holds the answer."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"it is no regular expression: {error}") from None
        return pattern


class FunctionOptions(RewardOption):
    """What a function of yours returns, called as TRL calls reward functions.

    `f(prompts, completions, completion_ids, **columns)` gives a number or None (no reward of this
    kind) for each completion, and may be async. Each column of the data is a list; `answer` has
    the reference answers. `trainer_state` is None; `log_extra` and `log_metric` drop what they are
    told. What the function does not take is not passed.
    """

    name: Literal["function"] = "function"
    """Which reward."""
    function: str
    """Where it is: "module:function" or "path/to/file.py:function"."""

    @field_validator("function")
    @classmethod
    def _names_a_function(cls, function: str) -> str:
        place, _, name = function.rpartition(":")
        if not place.strip() or not name.isidentifier():
            raise ValueError('write "module:function" or "path/to/file.py:function"')
        return f"{absolute(place)}:{name}" if place.endswith(".py") else function

    @property
    def file(self) -> Path | None:
        """The file that the function is in, where it is given by its file."""
        place = self.function.rpartition(":")[0]
        return Path(place) if place.endswith(".py") else None

    @property
    def label(self) -> str:
        return self.function.rpartition(":")[2]


class WorkerOptions(Options):
    """The processes that judge answers, apart from the run so that they can be killed."""

    count: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Processes; 0: one for each core."""
    timeout: float = Field(5.0, gt=0)
    """Seconds that a call may take, from its dispatch, before its process is killed."""
    memory_mb: int = Field(2048, ge=256)
    """Memory that a process may allocate."""
    batch_size: int = Field(1, ge=1)
    """Completions in a call; where a call of several fails, each is tried alone."""

    @property
    def processes(self) -> int:
        return self.count or len(os.sched_getaffinity(0))


REWARDS: dict[str, type[RewardOption]] = {
    group.model_fields["name"].default: group
    for group in (MathOptions, ExactOptions, NumericOptions, RegexOptions, FunctionOptions)
}


def _choose(value: Any) -> Any:
    """A reward's options from its table, its name, or a function's place."""
    if isinstance(value, str):
        value = {"name": "function", "function": value} if ":" in value else {"name": value}
    if not isinstance(value, dict):
        return value
    name = value.get("name", "function" if "function" in value else None)
    if not isinstance(name, str) or name not in REWARDS:
        raise ValueError(
            f"no such reward {name!r}: choose among {', '.join(sorted(REWARDS))}, or name a "
            'function of yours as "module:function" or "path/to/file.py:function"'
        )
    return REWARDS[name].model_validate(value)


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, str | dict | RewardOption) else value


def _sensible(rewards: tuple[RewardOption, ...]) -> tuple[RewardOption, ...]:
    if rewards and not any(reward.weight for reward in rewards):
        raise ValueError("every weight is 0: no answer could get a reward")
    twice = [label for label, times in Counter(r.label for r in rewards).items() if times > 1]
    if twice or any(reward.label == "answer" for reward in rewards):
        raise ValueError(
            f"{twice[0] if twice else 'answer'!r} cannot name two things: the parts of a score "
            "go by these names, and 'answer' is what was read; rename a function"
        )
    return rewards


RewardChoice = Annotated[SerializeAsAny[RewardOption], BeforeValidator(_choose)]
RewardChoices = Annotated[
    tuple[RewardChoice, ...], BeforeValidator(_several), AfterValidator(_sensible)
]
