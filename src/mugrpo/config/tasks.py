"""The options of each task, and of a mixture: problems from several sources with weights."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union

from pydantic import BeforeValidator, Field, create_model, field_validator, model_validator

from mugrpo.config.base import (
    HARMLESS,
    ByStage,
    GeneratedOptions,
    Options,
    PathOrName,
    TaskOptions,
    TextOptions,
    at_stage,
    members_of,
    one_of,
)
from mugrpo.config.rewards import MathOptions, Rewards


class ChainOptions(GeneratedOptions):
    """Chains of small sums, answered by running sums modulo 10 (embedded, needs no data)."""

    name: Literal["chain"] = "chain"
    factory: ClassVar[str] = "mugrpo.tasks.embedded:Chain"
    terms: int = Field(8, ge=2, le=128)
    """Terms in a chain. A response has 6 x (terms - 1) - 1 characters."""
    minus: bool = True
    """Subtract about half of the terms. Otherwise all are added."""


class LettersOptions(GeneratedOptions):
    """Letters to be put in alphabetical order (embedded, needs no data)."""

    name: Literal["letters"] = "letters"
    factory: ClassVar[str] = "mugrpo.tasks.embedded:Letters"


class CarryOptions(GeneratedOptions):
    """Sums of two long numbers, with a model that forgets to carry (embedded, needs no data)."""

    name: Literal["carry"] = "carry"
    factory: ClassVar[str] = "mugrpo.tasks.embedded:Carry"


class DatasetOptions(TextOptions):
    """Your own problems, from a file or the hub, with rewards of your choice."""

    name: Literal["dataset"] = "dataset"
    factory: ClassVar[str] = "mugrpo.tasks.dataset:Dataset"
    split: str | None = None
    """The split of a data set on the hub; "train" if unset."""
    subset: str | None = None
    """The configuration of a hub data set that has several."""
    revision: str | None = None
    """Commit, tag or branch of a data set on the hub. Only a commit always gives the same data."""
    eval_data: PathOrName | None = Field(None, json_schema_extra=HARMLESS)
    """The source of the held-out problems, in the same forms as `data`. If only eval_split is set,
    this is `data`."""
    eval_split: str | None = None
    """The split of a hub data set with the held-out problems."""
    eval_share: float = Field(0.1, ge=0, lt=1)
    """Share of the problems that is held out, by a hash of the prompt, if neither eval_data nor
    eval_split is set."""
    prompt_column: str = "prompt"
    """The column with the prompt: text, or a conversation as a list of {role, content}."""
    answer_column: str | None = "answer"
    """The column with the reference answer. Without a column "answer", reward functions judge
    alone. Of a solution, such as GSM8K's, it is what follows the last "####"."""
    id_column: str | None = None
    """The column with the problem's id. If unset, the id is a hash of prompt and answer. Of rows
    with the same id, the first one counts."""
    rewards: Rewards = (MathOptions(),)
    """How a response is judged: by "math", "exact", "numeric", "regex", "code", "environment",
    "module:function" or "file.py:function", or by tables with a name and its options. The reward is
    the weighted sum."""

    @model_validator(mode="after")
    def _verifiers_have_references(self) -> Self:
        verifiers = [r.name for r in self.rewards if r.verifies]
        if verifiers and self.answer_column is None:
            raise ValueError(f"the reward {verifiers[0]} needs an answer_column to compare with")
        return self


class SourceOptions(Options):
    """What a source of a mixture has besides the options of its task."""

    source: str = Field(pattern=r"^[\w.-]+$")
    """The source's name, in metrics and in the ids of its problems."""
    weight: ByStage = (1.0,)
    """Its share of the groups that a stage samples, over the sum of all weights. A list has a
    weight for each stage, the last one for all further stages. 0 leaves it out."""

    @field_validator("weight")
    @classmethod
    def _not_negative(cls, weights: tuple[float, ...]) -> tuple[float, ...]:
        if min(weights) < 0:
            raise ValueError("a weight cannot be negative; 0 leaves a source out")
        return weights


def _table(value: Any) -> Any:
    """Return a source as a table with the name of its task, which is "dataset" if unset."""
    return {"name": "dataset", **value} if isinstance(value, dict) else value


def _source(task: type[TaskOptions]) -> type[TaskOptions]:
    """Return the options of a task together with those of a source."""
    bases: Any = (task, SourceOptions)
    return create_model(f"{task.__name__}OfSource", __base__=bases, __doc__=task.__doc__)  # type: ignore[no-any-return]


_TASKS = members_of(one_of("tasks", ChainOptions, LettersOptions, CarryOptions, DatasetOptions))
if TYPE_CHECKING:

    class Source(TaskOptions, SourceOptions):
        """A source of a mixture: the options of a task with those of a source."""

else:
    _SourceTable = Annotated[
        Union[tuple(map(_source, _TASKS.values()))],  # noqa: UP007
        Field(discriminator="name"),
    ]
    Source = Annotated[_SourceTable, BeforeValidator(_table, json_schema_input_type=_SourceTable)]


class MixtureOptions(TaskOptions):
    """Problems from several sources, each with a weight, data and rewards of its own."""

    name: Literal["mixture"] = "mixture"
    factory: ClassVar[str] = "mugrpo.tasks.mixture:Mixture"
    sources: tuple[Source, ...] = Field(min_length=1)
    """The sources. Each is a table with the options of a task, a name (`source`) and a weight."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        names = Counter(source.source for source in self.sources)
        if twice := [name for name, times in names.items() if times > 1]:
            raise ValueError(f"two of task.sources are called {twice[0]!r}; rename one")
        for stage in range(max(len(source.weight) for source in self.sources)):
            if not sum(at_stage(source.weight, stage) for source in self.sources):
                raise ValueError(
                    f"all weights of task.sources are 0 in stage {stage}, so it could draw no "
                    "problem; give a source a weight above 0"
                )
        return self


if TYPE_CHECKING:
    Task = TaskOptions
else:
    Task = one_of(
        "tasks", ChainOptions, LettersOptions, CarryOptions, DatasetOptions, MixtureOptions
    )


def parts_of(task: TaskOptions) -> tuple[TaskOptions, ...]:
    """Return the sources of a mixture, or `task` itself."""
    return task.sources if isinstance(task, MixtureOptions) else (task,)


def datasets_in(task: TaskOptions) -> list[DatasetOptions]:
    """Return the options of each data set that `task` has problems of."""
    return [part for part in parts_of(task) if isinstance(part, DatasetOptions)]


def asks_environment(task: TaskOptions) -> bool:
    """Return whether the environment's own reward judges responses to problems of `task`."""
    rewards = (reward for one in datasets_in(task) for reward in one.rewards)
    return any(reward.in_rollout for reward in rewards)
