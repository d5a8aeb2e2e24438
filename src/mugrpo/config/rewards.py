"""The options of each reward, of the workers that judge answers, and of how scores are used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from mugrpo.config.cores import cores
from mugrpo.config.options import (
    HARMLESS,
    LISTED,
    PLACE,
    PRIVATE,
    PROCESSES,
    Code,
    NamedOptions,
    Options,
    PathOrName,
    choices,
)
from mugrpo.config.private import PrivateText
from mugrpo.disk.records import Status


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]


class RewardOption(NamedOptions):
    """One of the rewards whose weighted sum an answer gets."""

    weight: float = Field(1.0, ge=-1e6, le=1e6)
    """This reward's factor in the sum."""

    @property
    def label(self) -> str:
        """Return this reward's name in a score's parts; no two rewards share one."""
        return self.name

    @property
    def file(self) -> Path | None:
        """Return the file that this reward's function is in, or None."""
        return None

    @property
    def verifies(self) -> bool:
        """Return whether it compares the text of an answer with the reference."""
        return True

    def written(self, reference: str) -> str:
        """Return a response whose answer is the reference."""
        return reference


class BoxReader(RewardOption):
    """A reward that reads the answer in the last box."""

    def written(self, reference: str) -> str:
        return reference if r"\boxed" in reference else rf"\boxed{{{reference}}}"


class MathOptions(BoxReader):
    """1 if math-verify finds the answer equal to the reference, else 0."""

    name: Literal["math"] = "math"
    strict: bool = True
    """Compare boxes, words, units and intervals by rule (docs/verification.md), and reject loose
    matches of math-verify: x=7=12 for 12, {1,2} for (1,2), act for cat."""


class PlainOptions(BoxReader):
    """1 if the answer equals the reference as normalized text or as an exact number, else 0."""

    name: Literal["plain"] = "plain"


class ExactOptions(RewardOption):
    """1 if the text is the reference answer, apart from white space around it, else 0."""

    name: Literal["exact"] = "exact"
    ignore_case: bool = False
    """Ignore the difference between upper and lower case."""


class NumericOptions(RewardOption):
    """1 if the last number in the text is near the reference answer, else 0."""

    name: Literal["numeric"] = "numeric"
    tolerance: float = Field(1e-6, ge=0)
    """Largest difference that counts as right, times |reference| if that is above 1."""


class RegexOptions(RewardOption):
    """1 if a pattern's last match is the reference answer, else 0."""

    name: Literal["regex"] = "regex"
    pattern: Pattern
    """A Python regular expression. Its first group, or all of it, holds the answer."""


class CodeOptions(RewardOption):
    """1 if a response's program passes the tests that the reference answer holds, else 0.

    The program is the last fenced code block. It runs in a sandbox (docs/code_rewards.md); without
    one, the run does not begin.
    """

    name: Literal["code"] = "code"
    partial: bool = False
    """Give the share of the tests that pass. Otherwise, the first failure ends the judgment."""
    tolerance: float = Field(1e-6, ge=0)
    """Largest difference of two floats that count as equal, times the larger one if that is above
    1. Asserts compare as they are written."""
    timeout: int = Field(5, ge=1)
    """CPU time in seconds that a program may take for a test."""
    patience: float = Field(20.0, gt=0)
    """Seconds by the clock for all tests of a program. One that takes longer is unfinished."""
    memory_mb: int = Field(512, ge=64)
    """Memory in MiB that a program may take."""
    sandbox: Literal["auto", "bubblewrap", "wasm", "sandboxfusion"] = "auto"
    """Where programs run. "auto" takes the first of these that works here."""
    wasm: PathOrName | None = Field(None, json_schema_extra=PLACE)
    """A CPython compiled to WebAssembly (WASI). If unset, that of mugrpo[wasm]."""
    url: PrivateText | None = Field(None, json_schema_extra=PRIVATE)
    """The URL of a SandboxFusion server. A user with a password in it is hidden elsewhere."""


class EnvironmentReward(RewardOption):
    """The reward that the environment of a response with turns gives (docs/environments.md).

    As with a function, it may be None: no reward from the environment.
    """

    name: Literal["environment"] = "environment"

    @property
    def verifies(self) -> bool:
        return False


class FunctionOptions(RewardOption):
    """The result of a function of your own, which is called as TRL calls reward functions.

    `f(prompts, completions, completion_ids, **columns)` returns a number or None (no reward from
    this function) for each completion, and may be async. Each column of the data is a list;
    `answer` has the reference answers. `trainer_state`, `log_metric` and `log_extra` are as in TRL
    (docs/rewards.md says what differs). An argument that the function does not take is not passed.
    """

    name: Literal["function"] = "function"
    function: Code = Field(json_schema_extra=PLACE)
    """Where to find the function: "module:function" or "path/to/file.py:function"."""

    @property
    def file(self) -> Path | None:
        place = self.function.rpartition(":")[0]
        return Path(place) if place.endswith(".py") else None

    @property
    def verifies(self) -> bool:
        return False

    @property
    def label(self) -> str:
        return self.function.rpartition(":")[2]


class WorkerOptions(Options):
    """The worker processes that judge answers. The run kills one that takes too long."""

    count: int = Field(0, ge=0, le=PROCESSES, json_schema_extra=HARMLESS)
    """Worker processes. 0 starts one per core."""
    timeout: float = Field(5.0, ge=0)
    """Kill a worker process that computes for this many seconds on a call, summed over its threads.
    Waiting for anything, a core too, does not count. 0 sets no limit."""
    patience: float = Field(60.0, ge=0)
    """Kill a worker process that has not finished a call of reward functions this many seconds
    after its dispatch, whatever it waits for. 0 sets no limit, nor one for loading functions."""
    memory_mb: int = Field(2048, ge=0)
    """Memory in MiB that a process may take with all that it starts, shared memory included. 0 sets
    no limit, as CUDA needs it."""
    batch_size: int = Field(1, ge=1, le=LISTED)
    """Completions per call. If a call with several fails, each of them is tried alone."""

    @property
    def processes(self) -> int:
        return self.count or len(cores())


def _table(value: Any) -> Any:
    """Return a reward as a table, given a table, a name, or "module:function"."""
    if isinstance(value, str):
        value = {"function": value} if ":" in value else {"name": value}
    if not isinstance(value, dict):
        return value
    table = {"name": "function", **value} if "function" in value else value
    known = sorted(choices(Reward))
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
    twice = [label for label, times in Counter(r.label for r in rewards).items() if times > 1]
    if twice or any(reward.label == "answer" for reward in rewards):
        raise ValueError(
            f"{twice[0] if twice else 'answer'!r} cannot name two parts of a score: each reward is "
            "a part, and 'answer' is the answer that was read; rename a function"
        )
    return rewards


_RewardTable = Annotated[
    MathOptions
    | PlainOptions
    | ExactOptions
    | NumericOptions
    | RegexOptions
    | CodeOptions
    | EnvironmentReward
    | FunctionOptions,
    Field(discriminator="name"),
]
Reward = Annotated[_RewardTable, BeforeValidator(_table, json_schema_input_type=_RewardTable | str)]
Rewards = Annotated[
    tuple[Reward, ...],
    BeforeValidator(_several, json_schema_input_type=tuple[Reward, ...] | Reward),
    AfterValidator(_sensible),
]


def deciding(rewards: Sequence[RewardOption]) -> list[RewardOption]:
    """Return the verifiers among `rewards` that a status or a reward depends on.

    They are the first one, and all with a weight.
    """
    verifiers = [reward for reward in rewards if reward.verifies]
    return [one for one in verifiers if one.weight or one is verifiers[0]]


class RewardOptions(Options):
    """How the optimizer uses scores."""

    truncated: Literal["zero", "masked", "scored"] = "zero"
    """Give a truncated response reward 0 without judging it, leave it out of its group and of the
    loss, or judge it like any other."""
    unfinished: Literal["zero", "masked"] = "zero"
    """Give a response on which the judge runs out of time, memory or stack reward 0, or leave it
    out of its group and of the loss."""
    overlong_buffer: float = Field(0.0, ge=0, le=1)
    """Final share of max_new_tokens, over which a penalty on the reward grows from 0 to 1 (DAPO's
    soft overlong punishment). 0 turns it off."""
    failure_limit: float = Field(0.1, ge=0, le=1, json_schema_extra=HARMLESS)
    """Stop if a larger share of a shard's responses has no verdict: errors, unfinished ones, and
    those that no reward function gave a number."""

    def counts(self, status: Status) -> bool:
        """Return whether a response counts in its group's statistics and in the loss."""
        masked = {
            Status.TRUNCATED: self.truncated == "masked",
            Status.UNFINISHED: self.unfinished == "masked",
        }
        return status.rewarded and not masked.get(status, False)
