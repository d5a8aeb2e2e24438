"""The base classes of options, and the registry of extensions: the core names none of them.

An extension imports its base classes from here. Other files of config import the extensions, to
build the unions of options, so an import from there would be a circle. A package of your own adds
to mugrpo by an entry point (examples/extension):

    [project.entry-points."mugrpo.extensions"]
    mine = "my_package:extension"
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as of
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from mugrpo.config.cores import cores
from mugrpo.disk.errors import UsageError

if TYPE_CHECKING:
    from mugrpo.config.training import LoRAOptions


class Options(BaseModel):
    """A group of options: one typed field per option, with one description under it.

    Unknown keys are refused. When a run is resumed, a field marked `json_schema_extra=HARMLESS` may
    have changed: it decides no number, or is a place whose contents are compared instead. One
    marked FIXED may not, because the shards on disk depend on it. Any other change needs --force.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _lists_as_tuples(cls, raw: Any) -> Any:
        return tuples(raw)

    @classmethod
    def choices(cls) -> dict[str, dict[str, type[NamedOptions]]]:
        """Return group -> name -> options, for the groups that are chosen by name."""
        unions = {group: members_of(field.annotation) for group, field in cls.model_fields.items()}
        return {group: union for group, union in unions.items() if union}


HARMLESS: JsonDict = {"on_resume": "harmless"}
FIXED: JsonDict = {"on_resume": "fixed"}


class NamedOptions(Options):
    """An option group that is chosen among several by its `name`."""

    name: str


def members_of(union: Any) -> dict[str, type[NamedOptions]]:
    """Return name -> option group for a discriminated union, or for a tuple of such a union.

    Any other annotation has no members.
    """
    members = get_args(union)
    if get_origin(union) in (Annotated, tuple):
        return members_of(members[0])
    if all(isinstance(member, type) and issubclass(member, NamedOptions) for member in members):
        return {member.model_fields["name"].default: member for member in members}
    return {}


def absolute(text: str) -> str:
    """Return `text` as an absolute path if that path exists, or unchanged (a hub id, a name).

    This lets a run be resumed from any directory.
    """
    return os.path.abspath(text) if os.path.exists(text) else text


PathOrName = Annotated[str, AfterValidator(absolute)]


def _code(text: str) -> str:
    """Return "module:name" or "file.py:name", the file as an absolute path if it exists."""
    place, _, name = text.rpartition(":")
    if not place.strip() or not name.isidentifier():
        raise ValueError('write "module:name" or "path/to/file.py:name"')
    return f"{absolute(place)}:{name}" if place.endswith(".py") else text


# The name of something in a Python module or file: "module:name" or "file.py:name".
Code = Annotated[str, AfterValidator(_code)]


# A number, or one for each stage. Stages beyond the list have its last number.
ByStage = Annotated[
    tuple[float, ...],
    Field(min_length=1),
    BeforeValidator(
        lambda value: (value,) if isinstance(value, int | float) else value,
        json_schema_input_type=float | tuple[float, ...],
    ),
]


def at_stage(values: tuple[float, ...], stage: int) -> float:
    """Return the number that `values`, a ByStage, has for `stage`."""
    return values[min(stage, len(values) - 1)]


def tuples(value: Any) -> Any:
    """Return `value` with every list as a tuple: TOML and JSON have lists, options have tuples."""
    if isinstance(value, dict):
        return {name: tuples(entry) for name, entry in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def _has_a_place(template: str) -> str:
    if "{prompt}" not in template:
        raise ValueError("it has no {prompt}, so every problem would read the same")
    return template


Template = Annotated[str, AfterValidator(_has_a_place)]


class MadeOptions(NamedOptions):
    """Options with a factory: "module:function", a function of the options.

    The function is imported when it is first called, so defining options imports nothing heavy.
    """

    factory: ClassVar[str]

    def made(self, *arguments: Any, **named: Any) -> Any:
        """Call the factory with these options and further arguments."""
        return imported(self.factory)(self, *arguments, **named)


def imported(place: str) -> Any:
    """Import and return the object "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


class TaskOptions(MadeOptions):
    """A task. Its factory takes `WorkerOptions`, too, and returns a `tasks.base.Task`."""

    packages: ClassVar[tuple[str, ...]] = ()  # whose versions decide its problems


class GeneratedOptions(TaskOptions):
    """A task that generates its problems."""

    seed: int = Field(0, ge=0)
    """Decides which problems are generated. Held-out problems of one seed are never trained on with
    another."""
    train_problems: int = Field(4096, ge=1)
    """Distinct problems to train on."""
    eval_problems: int = Field(512, ge=1)
    """Distinct held-out problems; of a data set, at most N, those with the lowest hashes."""


class TextOptions(TaskOptions):
    """A task whose problems are text, which a model reads in words of the user's."""

    data: PathOrName = Field(json_schema_extra=HARMLESS)
    """A JSONL (.jsonl), parquet or CSV file, or the id of a data set on the hub; of reasoning-gym,
    the name of a data set, such as "chain_sum"."""
    # The same words in each class: help merges options that say the same.
    eval_problems: int = Field(256, ge=1)
    """Distinct held-out problems; of a data set, at most N, those with the lowest hashes."""
    system_prompt: str | None = None
    """A system message for every conversation without one. It needs prompt.form = "chat"."""
    prompt_template: Template = "{prompt}"
    """The text of the last user message. {prompt} stands for the text in the data."""


class RewardOption(MadeOptions):
    """One of the rewards whose weighted sum an answer gets.

    Its factory returns a `rewards.verdict.Verifier`, a function of (text, reference).
    """

    waits: ClassVar[bool] = False  # for more than computing, so it has a deadline by the clock
    in_rollout: ClassVar[bool] = False  # the environment of its turns gave it; nothing is judged
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

    @property
    def decides(self) -> bool:
        """Return whether its verdict says which responses are right."""
        return self.verifies

    def written(self, reference: str) -> str:
        """Return a response whose answer is the reference."""
        return reference

    def reference(self, value: Any, row: Mapping[str, Any]) -> Any:
        """Return the value of a row's answer column as this reward reads it."""
        return value

    def fault(self, reference: str) -> str | None:
        """Return why a reference cannot be used ("has no tests: ..."), or None."""
        return None


class OwnReward(RewardOption):
    """A reward that somebody has written: it is no verdict, unless it is named as that."""

    verdict: bool = False
    """Whether a response is right if this reward is at least 1, and wrong if it is less. One reward
    can be the verdict, before any built-in one. Without any, nothing is called accuracy."""

    @property
    def verifies(self) -> bool:
        return False

    @property
    def decides(self) -> bool:
        return self.verdict


_WAITING = 12  # times the limit on computing: 60 s by default for a model that judges elsewhere


class WorkerOptions(Options):
    """The worker processes that judge answers, and those that environments live in.

    The run kills one that takes too much.
    """

    count: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Worker processes. 0 starts one per core."""
    timeout: float = Field(5.0, ge=0)
    """Kill a worker process that computes for this many seconds for each completion of a call.
    Functions, programs and environments may wait: they have 12 times as long by the clock.
    Environments have only that limit. 0 sets no limit."""
    memory_mb: int = Field(2048, ge=0)
    """Private memory in MiB that a process, and each that it starts, may take. 0 sets no limit, as
    CUDA needs it."""
    batch_size: int = Field(1, ge=1)
    """Completions per call, rounded to whole groups for functions, at least one group. If a call
    fails, each completion is tried alone, and those that do not fail alone together once more."""

    @property
    def processes(self) -> int:
        return self.count or len(cores())

    @property
    def waiting(self) -> float:
        """Return the seconds by the clock that a call may take if it waits, 0 for no limit."""
        return _WAITING * self.timeout


class Part(NamedOptions):
    """A part of the objective."""

    # options that the part's function does not take
    no_knobs: ClassVar[tuple[str, ...]] = ("name",)

    @property
    def knobs(self) -> dict[str, Any]:
        """Return the options that are keyword arguments of the part's function."""
        return self.model_dump(exclude=set(self.no_knobs))

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the names of the logprobs that this part needs stored beside the rollouts."""
        return ()


class ObjectiveOptions(Part):
    """A loss computed from ratios and advantages.

    `module` has its `loss`; by default it is mugrpo.optimize.objectives.NAME.
    """

    module: ClassVar[str] = ""


class EngineOptions(MadeOptions):
    """The options that every engine has.

    An engine that the run does not start has a factory. It takes the `Vocabulary` of the model,
    too, and returns a list of `engines.base.Engine`.
    """

    factory: ClassVar[str] = ""
    reaches: ClassVar[tuple[str, ...]] = ()  # options with programs, their arguments and addresses
    loading_option: ClassVar[str]  # the option that decides how much is taken before generation
    slots: int  # sequences decoded together, which decide how much memory generation takes

    @property
    def runs_already(self) -> bool:
        """Return whether the run does not start it, and gives it no GPU."""
        return bool(self.factory)

    @property
    def memory_remedy(self) -> str:
        """Return what to do if generation runs out of memory."""
        if not self.slots:  # as many as seemed to fit
            return "set --engine.slots 64 or fewer (with --force)"
        return f"lower --engine.slots (now {self.slots}, with --force)"

    @property
    def loading_remedy(self) -> str:
        """Return what to do if memory runs out when the engines start, wake or take weights."""
        return f"lower --engine.{self.loading_option} (now {getattr(self, self.loading_option)})"

    @property
    def max_model_len(self) -> int | None:
        """Return the longest sequence that the engine itself accepts, or None for no limit."""
        return None

    def faults(self, *, temperatures: Sequence[float], lora: LoRAOptions) -> Iterator[str]:
        """Yield a message for each option of the run that the engine cannot work with."""
        yield from ()


class BackendOptions(MadeOptions):
    """What starts engines and ranks that have processes of their own.

    The factory of a cluster returns what has the methods of `extensions.ray.cluster.RayCluster`.
    Without one, this machine starts them.
    """

    factory: ClassVar[str] = ""

    @property
    def clustered(self) -> bool:
        """Return whether a cluster chooses the machines and GPUs of engines and ranks."""
        return bool(self.factory)

    def cluster(self) -> Any:
        """Return what places engines and ranks, or None if this machine runs them."""
        return self.made() if self.factory else None


class TurnOptions(Options):
    """What answers the model between its turns. Without an extension that adds it, nothing does."""

    # "module:function" of (RunConfig, PromptEncoder, log), which returns a `sampler.Dialogue`
    dialogue: ClassVar[str] = ""
    # "module:function" of RunConfig: the JSON schemas of the tools that a model may call
    schemas: ClassVar[str] = ""

    @property
    def given(self) -> bool:
        """Return whether responses have turns."""
        return False

    @property
    def code(self) -> list[str]:
        """Return all code that the options name and this interpreter imports."""
        return []

    @property
    def reaches(self) -> tuple[str, ...]:
        """Return the options with programs, their arguments and addresses."""
        return ()

    def faults(self, form: str, own_reward: bool) -> Iterator[str]:
        """Yield a message for each combination that does not work, with the remedy.

        `form` is prompt.form, and `own_reward` whether the environment's own reward is asked for.
        """
        yield from ()


_GROUP = "mugrpo.extensions"


@dataclass(frozen=True)
class Extension:
    """What an extension adds. Options are classes; a "module:name" is imported when it is used."""

    rewards: tuple[type[RewardOption], ...] = ()
    objectives: tuple[type[ObjectiveOptions], ...] = ()
    tasks: tuple[type[TaskOptions], ...] = ()
    engines: tuple[type[EngineOptions], ...] = ()
    backends: tuple[type[BackendOptions], ...] = ()
    environment: type[TurnOptions] | None = None  # the table `environment`
    measures: str = ""  # what measures evaluation.suites (`stages.evaluate.Measures`)
    suites: str = ""  # what reads one of them: a function of SuiteUse -> `run.trust.Suite`s
    # of metrics lines: functions of (folder, line) -> what is wrong with it (`run.faults`), or None
    witnesses: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()  # of the report: functions of runs -> (title, figures)
    status: tuple[str, ...] = ()  # functions of a RunDir -> further lines of `mugrpo status`
    commands: tuple[str, ...] = ()  # functions of `arguments.Commands`, in light modules
    checks: Mapping[str, str] = of(default_factory=dict)  # subject -> a check of `doctor`


@cache
def installed() -> dict[str, Extension]:
    """Return name -> extension: those in mugrpo/extensions, then those of other packages.

    Raises UsageError if another package's entry point cannot be imported.
    """
    found = {}
    for module in pkgutil.iter_modules(import_module(_GROUP).__path__ if find_spec(_GROUP) else ()):
        adds = module.ispkg  # a lone module is imported by its users
        found[module.name] = imported(f"{_GROUP}.{module.name}:extension") if adds else Extension()
    for entry in entry_points(group=_GROUP):
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            raise UsageError(
                f"the extension {entry.name} ({entry.value}) cannot be imported "
                f"({type(error).__name__}: {error}); fix it, or uninstall its package"
            ) from None
    return found


def one_of(kind: str, *own: type[Any]) -> Any:
    """Return the union of the core's options and those that extensions add, chosen by name.

    `kind` is a field of `Extension`.
    """
    added = [options for one in installed().values() for options in getattr(one, kind)]
    if not added and len(own) == 1:
        return own[0]
    return Annotated[Union[(*own, *added)], Field(discriminator="name")]


def turn_options() -> type[TurnOptions]:
    """Return the options of the table `environment`, which an extension may add."""
    added = (one.environment for one in installed().values() if one.environment)
    return next(added, TurnOptions)
