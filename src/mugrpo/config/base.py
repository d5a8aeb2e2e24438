"""Base classes for the options of extensions.

An extension imports from here and from `config.options` alone. The other files of config import the
extensions, to build the unions of options, so an import from there would be a circle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import AfterValidator, Field

from mugrpo.config.cores import cores
from mugrpo.config.options import (
    HARMLESS,
    LISTED,
    PROCESSES,
    NamedOptions,
    Options,
    PathOrName,
)


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

    train_problems: int = Field(4096, ge=1, le=LISTED)
    """Distinct problems to train on."""
    eval_problems: int = Field(512, ge=1, le=LISTED)
    """Distinct held-out problems; of a data set, at most N, those with the lowest hashes."""


class TextOptions(TaskOptions):
    """A task whose problems are text, which a model reads in words of the user's."""

    data: PathOrName
    """A JSONL (.jsonl), parquet or CSV file, or the id of a data set on the hub; of reasoning-gym,
    the name of a data set, such as "chain_sum"."""
    eval_problems: int = Field(256, ge=1, le=LISTED)
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

    def reference(self, value: Any, row: Mapping[str, Any]) -> Any:
        """Return the value of a row's answer column as this reward reads it."""
        return value

    def fault(self, reference: str) -> str | None:
        """Return why a reference cannot be used ("has no tests: ..."), or None."""
        return None


_WAITING = 12  # times the limit on computing: 60 s by default for a model that judges elsewhere


class WorkerOptions(Options):
    """The worker processes that judge answers, and those that environments live in.

    The run kills one that takes too much.
    """

    count: int = Field(0, ge=0, le=PROCESSES, json_schema_extra=HARMLESS)
    """Worker processes. 0 starts one per core."""
    timeout: float = Field(5.0, ge=0)
    """Kill a worker process that computes for this many seconds on a call, summed over its threads.
    Functions, programs and environments may wait: they have 12 times as long by the clock.
    Environments have only that limit. 0 sets no limit, nor one for loading."""
    memory_mb: int = Field(2048, ge=0)
    """Private memory in MiB that a process, and each that it starts, may take. 0 sets no limit, as
    CUDA needs it."""
    batch_size: int = Field(1, ge=1, le=LISTED)
    """Completions per call. If a call with several fails, each of them is tried alone."""

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

    `module` has its `loss` (see `mugrpo.optimize.objectives`); the core's own are named as they are
    chosen.
    """

    module: ClassVar[str] = ""


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

    @property
    def addresses(self) -> Mapping[str, str]:
        """Return option -> the address of the cluster."""
        return {}


class EnvironmentKind(Protocol):
    """Environments of another package, which environment.name names as "KIND:NAME"."""

    factory: str  # "module:function" of the options, which returns `environments.base.Environments`

    def faults(self, options: Any, form: str) -> Iterator[str]:
        """Yield a message for each combination of EnvironmentOptions that does not work.

        `form` is prompt.form.
        """
        ...
