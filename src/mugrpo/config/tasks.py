"""The options of each task."""

from __future__ import annotations

import re
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from mugrpo.config.base import TaskOptions, Template, WorkerOptions
from mugrpo.config.options import LISTED, PathOrName
from mugrpo.config.rewards import MathOptions, Pattern, Rewards


class EmbeddedOptions(TaskOptions):
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
    factory: ClassVar[str] = "mugrpo.tasks.embedded:Chain"
    terms: int = Field(8, ge=2, le=128)
    """Terms in a chain. A response has 6 x (terms - 1) - 1 characters."""
    max_digit: int = Field(3, ge=1, le=9)
    """Largest term. Terms are digits from 1 to this."""
    minus: bool = True
    """Subtract about half of the terms. Otherwise all are added."""


class LettersOptions(EmbeddedOptions):
    """Letters to be put in alphabetical order (embedded, needs no data)."""

    name: Literal["letters"] = "letters"
    factory: ClassVar[str] = "mugrpo.tasks.embedded:Letters"
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


class DatasetOptions(TaskOptions):
    """Your own problems, from a file or the hub, with rewards of your choice."""

    name: Literal["dataset"] = "dataset"
    factory: ClassVar[str] = "mugrpo.tasks.dataset:Dataset"
    data: PathOrName
    """A JSONL (.jsonl), parquet or CSV file, or the id of a data set on the hub."""
    split: str | None = None
    """The split of a data set on the hub; "train" if unset."""
    subset: str | None = None
    """The configuration of a hub data set that has several."""
    revision: str | None = None
    """Commit, tag or branch of a data set on the hub. Only a commit always gives the same data."""
    eval_data: PathOrName | None = None
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
