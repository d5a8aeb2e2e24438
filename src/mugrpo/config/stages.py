"""Options of the schedule and its stages, and of what a run measures and keeps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from mugrpo.config.options import (
    FIXED,
    HARMLESS,
    LISTED,
    NamedOptions,
    Options,
    PathOrName,
    absolute,
)

# Ten times what the largest runs have, and what a machine can list: the groups of a stage are drawn
# into memory, and every update of the run is visited to find what is due.
_UPDATES, _GROUPS, _ROLLOUTS = 10**6, 10**7, 10**8
_GROWING = 1000  # stages; where a stage begins is a sum over those before it


class ScheduleOptions(Options):
    """How much is generated when, and how often it is trained on."""

    stages: int = Field(4, ge=1, le=_UPDATES)
    """Number of stages. At the start of each, the engine takes the newest weights and generates
    once. The run makes stages x batches x passes updates."""
    batches_per_stage: int = Field(64, ge=1, le=_UPDATES, json_schema_extra=FIXED)
    """Batches of rollouts generated per refresh."""
    growth: float = Field(1.0, gt=0, le=16, json_schema_extra=FIXED)
    """Batches of each stage, as a multiple of the stage before: with 2, every stage is twice as
    long. batches_per_stage is that of the first."""
    passes_per_batch: int = Field(1, ge=1, le=_UPDATES, json_schema_extra=FIXED)
    """Updates on each batch, before the next one."""
    problems_per_update: int = Field(16, ge=1, le=_GROUPS, json_schema_extra=FIXED)
    """Problems per batch; each has one group of responses."""
    group_size: int = Field(8, ge=2, le=_ROLLOUTS, json_schema_extra=FIXED)
    """Responses per problem."""

    @model_validator(mode="after")
    def _size_is_bounded(self) -> Self:
        if self.growth != 1 and self.stages > _GROWING:
            raise ValueError(
                f"growth = {self.growth:g} with stages = {self.stages}: stages that grow may be "
                f"{_GROWING:,}; lower stages, or set growth = 1"
            )
        if (self.stages - 1) * math.log(self.growth) > math.log(1e3):
            raise ValueError(
                f"growth = {self.growth:g} makes the last of {self.stages} stages a thousand times "
                "as long as the first; lower it (1 makes all stages equal)"
            )
        largest = self.batches(self.stages - 1) * self.problems_per_update
        for what, options, count, most in (
            (
                "updates",
                "stages, batches_per_stage or passes_per_batch",
                self.total_updates,
                _UPDATES,
            ),
            ("groups in a stage", "batches_per_stage or problems_per_update", largest, _GROUPS),
            ("rollouts in a stage", "group_size", largest * self.group_size, _ROLLOUTS),
        ):
            if count > most:
                raise ValueError(f"it has {count:,} {what}, more than {most:,}; lower {options}")
        return self

    def batches(self, stage: int) -> int:
        """Return a stage's number of batches. Stages after the planned ones repeat the last."""
        return max(1, round(self.batches_per_stage * self.growth ** min(stage, self.stages - 1)))

    def updates(self, stage: int) -> int:
        """Return the updates of a stage, the literature's mu."""
        return self.batches(stage) * self.passes_per_batch

    def first_update(self, stage: int) -> int:
        """Return the number of updates before `stage`. Its behavior policy has received these."""
        if self.growth == 1:
            return stage * self.updates_per_stage
        return sum(map(self.updates, range(stage)))

    def stage_of(self, update: int) -> int:
        """Return the stage that update number `update` (from 0) belongs to."""
        if self.growth == 1:
            return update // self.updates_per_stage
        stage = 0
        while (update := update - self.updates(stage)) >= 0:
            stage += 1
        return stage

    def staleness(self, update: int) -> int:
        """Return the number of updates from the behavior policy to update number `update`."""
        return update - self.first_update(self.stage_of(update))

    def batch_of(self, update: int) -> int:
        """Return the batch, within its stage, that update number `update` (from 0) trains on."""
        return self.staleness(update) // self.passes_per_batch

    @property
    def updates_per_stage(self) -> int:
        """Return the updates of the first stage; without growth, of every stage."""
        return self.updates(0)

    @property
    def total_updates(self) -> int:
        return self.first_update(self.stages)

    @property
    def rollouts_per_update(self) -> int:
        return self.problems_per_update * self.group_size


class EveryGroup(NamedOptions):
    """Every group."""

    name: Literal["every"] = "every"


class DynamicSampling(NamedOptions):
    """Groups with both right and wrong responses; others are replaced by further samples (DAPO)."""

    name: Literal["dynamic"] = "dynamic"
    max_oversampling: float = Field(10.0, ge=1)
    """Stop the run once a stage has sampled this many times the groups that its updates need."""


Sampling = Annotated[EveryGroup | DynamicSampling, Field(discriminator="name")]


class CheckpointOptions(Options):
    """When the policy and the optimizer's state are saved. A checkpoint is written while training
    goes on, from a copy in CPU memory: 12 bytes per parameter."""

    every: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Save every N updates, and after the last. 0 saves at the end of each stage."""
    minutes: float = Field(10, ge=0, json_schema_extra=HARMLESS)
    """Save when updates of N minutes would be lost. Such a checkpoint, like one of a run that was
    asked to stop, is removed once there is a newer one. 0 saves none for the time."""
    keep: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Keep the newest N checkpoints, and those still needed: the one that the current stage began
    from, and a reference policy's. 0 keeps all that `every` asks for."""


class SuiteUse(Options):
    """A benchmark suite that is measured during training."""

    name: str = Field(min_length=1, json_schema_extra=HARMLESS)
    """A suite (docs/evaluation.md), or a suite file of your own, which ends in .toml."""
    every: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Measure every N updates, and before the first and after the last. 0: only these two."""
    data: PathOrName | None = Field(None, json_schema_extra=HARMLESS)
    """A local file with the problems; the suite's data set on the hub if unset."""
    problems: int | None = Field(None, ge=1, json_schema_extra=HARMLESS)
    """Measure on N problems; all if unset."""

    @field_validator("name")
    @classmethod
    def _file_is_absolute(cls, name: str) -> str:
        return absolute(name) if name.endswith(".toml") else name

    @property
    def label(self) -> str:
        """Return the name of the suite's results."""
        return Path(self.name).stem


class EvaluationOptions(Options):
    """Accuracy on held-out problems, measured before, during and after training."""

    every: int = Field(32, ge=0, json_schema_extra=HARMLESS)
    """Evaluate every N updates, and before the first and after the last. 0 never evaluates."""
    samples: int = Field(1, ge=1, le=LISTED, json_schema_extra=HARMLESS)
    """Responses per problem."""
    final_samples: int | None = Field(None, ge=1, le=LISTED, json_schema_extra=HARMLESS)
    """Responses per problem after the last update, for pass@k; `samples` if unset."""
    final_greedy: bool = Field(False, json_schema_extra=HARMLESS)
    """Also sample one response per problem after the last update at a temperature of 0.01, which is
    nearly greedy."""
    temperature: float = Field(1.0, ge=1e-3, le=10, json_schema_extra=HARMLESS)
    """Sampling temperature."""
    suites: tuple[SuiteUse, ...] = Field((), json_schema_extra=HARMLESS)
    """Benchmark suites to measure beside the held-out problems, each at its own period."""


class SampleOptions(Options):
    """Rollouts kept for people to read, with the ratio and the entropy of every token."""

    every: int = Field(16, ge=0, json_schema_extra=HARMLESS)
    """Keep four rollouts of every N-th update, and of a stage's first and last planned update. Two
    have a negative advantage if there are any. 0 keeps none."""


class SinkOptions(Options):
    """Where metrics go besides metrics.jsonl."""

    tensorboard: bool = Field(False, json_schema_extra=HARMLESS)
    """Write TensorBoard event files into the run's directory."""
    trackio: str | None = Field(None, json_schema_extra=HARMLESS)
    """A trackio project to log to."""
    wandb: str | None = Field(None, json_schema_extra=HARMLESS)
    """A Weights & Biases project to log to."""
