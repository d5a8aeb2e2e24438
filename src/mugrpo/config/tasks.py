"""The options of each task."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from mugrpo.config.options import LISTED, PLACE, NamedOptions, PathOrName
from mugrpo.config.rewards import MathOptions, Pattern, Rewards, WorkerOptions


def _has_a_place(template: str) -> str:
    if "{prompt}" not in template:
        raise ValueError("it has no {prompt}, so every problem would read the same")
    return template


Template = Annotated[str, AfterValidator(_has_a_place)]


class EmbeddedOptions(NamedOptions):
    """The options that every embedded task has."""

    train_problems: int = Field(4096, ge=1, le=LISTED)
    """Distinct problems to train on."""
    eval_problems: int = Field(512, ge=1, le=LISTED)
    """Distinct held-out problems."""
    seed: int = Field(0, ge=0)
    """Chooses the problems, independently of the run's seed."""


class ChainOptions(EmbeddedOptions):
    """Chains of small sums, answered by running sums modulo 10 (embedded, needs no data)."""

    name: Literal["chain"] = "chain"
    terms: int = Field(8, ge=2, le=128)
    """Terms in a chain. A response has 6 x (terms - 1) - 1 characters."""
    max_digit: int = Field(3, ge=1, le=9)
    """Largest term. Terms are digits from 1 to this."""
    minus: bool = True
    """Subtract about half of the terms. Otherwise all are added."""


class LettersOptions(EmbeddedOptions):
    """Letters to be put in alphabetical order (embedded, needs no data)."""

    name: Literal["letters"] = "letters"
    shortest: int = Field(8, ge=2, le=64)
    """Letters in the shortest prompt."""
    longest: int = Field(16, ge=2, le=64)
    """Letters in the longest prompt. A response has as many letters as its prompt."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError(
                f"task.shortest = {self.shortest} is more than task.longest = {self.longest}"
            )
        return self


class DatasetOptions(NamedOptions):
    """Your own problems, from a file or the hub, with rewards of your choice."""

    name: Literal["dataset"] = "dataset"
    data: PathOrName = Field(json_schema_extra=PLACE)
    """A JSONL (.jsonl), parquet or CSV file, or the id of a data set on the hub."""
    split: str | None = None
    """The split of a data set on the hub; "train" if unset."""
    subset: str | None = None
    """The configuration of a hub data set that has several."""
    revision: str | None = None
    """Commit, tag or branch of a data set on the hub. Only a commit always gives the same data."""
    eval_data: PathOrName | None = Field(None, json_schema_extra=PLACE)
    """The source of the held-out problems, in the same forms as `data`. If only eval_split is set,
    this is `data`."""
    eval_split: str | None = None
    """The split of a hub data set with the held-out problems."""
    eval_share: float = Field(0.1, ge=0, lt=1)
    """Share of the problems that is held out, by a hash of the prompt, if neither eval_data nor
    eval_split is set."""
    train_problems: int | None = Field(None, ge=1, le=LISTED)
    """Train on the first N problems only."""
    eval_problems: int | None = Field(256, ge=1, le=LISTED)
    """Evaluate on at most N held-out problems, those with the lowest hashes."""
    prompt_column: str = "prompt"
    """The column with the prompt: text, or a conversation as a list of {role, content}."""
    answer_column: str | None = "answer"
    """The column with the reference answer; none if only reward functions judge."""
    answer_pattern: Pattern | None = None
    """A regular expression whose first group is the answer, if the column holds more: for GSM8K
    "#### (.+)"."""
    id_column: str | None = None
    """The column with the problem's id. If unset, the id is a hash of prompt and answer."""
    duplicates: Literal["error", "drop"] = "error"
    """Refuse rows with the same id, or keep only the first of them."""
    system_prompt: str | None = None
    """A system message for every conversation without one. It needs prompt.form = "chat"."""
    prompt_template: Template = "{prompt}"
    """The text of the last user message. {prompt} stands for the text in the data."""
    rewards: Rewards = (MathOptions(),)
    """How a response is judged: by "math", "plain", "exact", "numeric", "regex", "code",
    "environment", "module:function" or "file.py:function", or by tables with a name and its
    options. The reward is the weighted sum."""
    right_at: float = 1.0
    """If only functions judge, a response with at least this reward counts as right."""
    workers: WorkerOptions = WorkerOptions()

    @field_validator("answer_pattern")
    @classmethod
    def _pattern_has_a_group(cls, value: str | None) -> str | None:
        if value is not None and re.compile(value).groups == 0:
            raise ValueError("it has no group (in parentheses) to take the answer from")
        return value

    @model_validator(mode="after")
    def _verifiers_have_references(self) -> Self:
        verifiers = [r.name for r in self.rewards if r.verifies]
        if verifiers and self.answer_column is None:
            raise ValueError(f"the reward {verifiers[0]} needs an answer_column to compare with")
        return self


class ReasoningGymOptions(NamedOptions):
    """Problems that reasoning-gym generates, judged by its own score_answer."""

    name: Literal["reasoning-gym"] = "reasoning-gym"
    dataset: str
    """A data set of reasoning-gym, such as "chain_sum"."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The data set's own parameters, such as {min_terms = 2}, which decide how hard it is."""
    train_problems: int = Field(4096, ge=1, le=LISTED)
    """Distinct problems to train on."""
    eval_problems: int = Field(256, ge=1, le=LISTED)
    """Distinct held-out problems: one in eight prompts, by a hash."""
    seed: int = Field(0, ge=0)
    """Chooses the problems, independently of the run's seed."""
    answer: Literal["tags", "last_line", "last_word", "all"] = "tags"
    """What of a response is judged: the text in its last <answer></answer>, its last line, its last
    word without a period, or all of it."""
    system_prompt: str | None = None
    """A system message for every conversation without one. It needs prompt.form = "chat"."""
    prompt_template: Template = "{prompt}"
    """The text of the last user message. {prompt} stands for the text in the data."""
    right_at: float = 1.0
    """If only functions judge, a response with at least this reward counts as right."""
    workers: WorkerOptions = WorkerOptions()

    @field_validator("config")
    @classmethod
    def _has_own_options(cls, config: dict[str, Any]) -> dict[str, Any]:
        if named := [name for name in ("seed", "size") if name in config]:
            other = {"seed": "task.seed", "size": "task.train_problems and task.eval_problems"}
            raise ValueError(f"{named[0]} is set by {other[named[0]]}")
        return config
