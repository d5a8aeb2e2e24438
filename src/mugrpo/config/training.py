"""Options of the schedule, the optimizer, and of what a run measures and keeps."""

import math
import os
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from mugrpo.config.base import FIXED, HARMLESS, Options, PathOrName

MICRO_BATCH_TOKENS = 4096  # on a CPU
_UPDATES = 10**6  # ten times what the largest runs have; each is visited to find what is due


class ScheduleOptions(Options):
    """How much is generated when, and how often it is trained on."""

    stages: int = Field(4, ge=1)
    """Number of stages. At the start of each, the engine takes the newest weights and generates
    once. A stage makes batches x passes updates, and with `growth` the next one more."""
    batches_per_stage: int = Field(64, ge=1, json_schema_extra=FIXED)
    """Batches of rollouts generated per refresh."""
    growth: float = Field(1.0, gt=0, le=16, json_schema_extra=FIXED)
    """Batches of each stage, as a multiple of the stage before: with 2, every stage is twice as
    long. batches_per_stage is that of the first."""
    passes_per_batch: int = Field(1, ge=1, json_schema_extra=FIXED)
    """Updates on each batch, before the next one."""
    problems_per_update: int = Field(16, ge=1, json_schema_extra=FIXED)
    """Problems per batch; each has one group of responses."""
    group_size: int = Field(8, ge=2, json_schema_extra=FIXED)
    """Responses per problem."""

    @model_validator(mode="after")
    def _size_is_bounded(self) -> Self:
        if self.stages > _UPDATES or (self.stages - 1) * math.log(self.growth) > math.log(_UPDATES):
            raise ValueError("the last stage has too many batches to count; lower stages or growth")
        if self.total_updates > _UPDATES:
            raise ValueError(
                f"it has {self.total_updates:,} updates, more than {_UPDATES:,}; lower stages, "
                "batches_per_stage or passes_per_batch"
            )
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


class SamplingOptions(Options):
    """Which groups a stage samples, and which of them its updates take."""

    surplus: float = Field(1.0, ge=1, le=100)
    """How many times the groups that its updates need a stage samples. Above 1, updates take the
    groups that vary: those with both right and wrong responses or, if no reward says what is right,
    with different rewards (DAPO's filter). If too few do, others fill the last batches."""


class OptimizerOptions(Options):
    """AdamW, its learning-rate schedule (in updates), and how an update is computed."""

    lr: float = Field(1e-4, gt=0)
    """Peak learning rate. Its default is 3e-6 for every model.path but those of embedded tasks."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Shape of the learning rate after the warm-up, over all updates of the run. It falls to 0
    after the last update."""
    warmup_updates: int = Field(0, ge=0)
    """Updates over which the learning rate rises linearly from 0."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment, each in [0, 1). A refresh makes gradients
    larger at once; the second moment must not take a thousand updates to follow."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's denominator constant."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay, on matrices only."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Largest norm of the gradient; a larger gradient is scaled down to it."""
    micro_batch_tokens: int | None = Field(None, ge=1)
    """Most tokens, padding included, that go through the model in one micro-batch. Each response's
    copy of a shared prompt's keys and values counts as an eighth. A longer response is computed
    alone. If unset, it is 4,096 on a CPU, and on a GPU what its memory has room for, up to 16,384.
    The run says and keeps it."""

    @model_validator(mode="after")
    def _betas_in_range(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {list(self.betas)}: each must be in [0, 1)")
        return self


class DistributedOptions(Options):
    """Processes that make the updates together, each with a part of the weights (FSDP2)."""

    processes: int = Field(1, ge=1, json_schema_extra=HARMLESS)
    """Processes, with a GPU each, on this machine or, with Ray, on several. `mugrpo train` starts
    them once. While engines generate on their GPUs, they move weights and optimizer state to CPU
    memory."""


class LoRAOptions(Options):
    """LoRA, by peft: train a small adapter instead of the model, which stays as it is. A layer
    computes W x + alpha / rank B (A x), and only A and B are trained."""

    rank: int = Field(0, ge=0, json_schema_extra=FIXED)
    """Rows of A and columns of B. 0 trains the whole model."""
    alpha: int = Field(32, ge=1, json_schema_extra=FIXED)
    """The adapter's output is multiplied by alpha / rank. With the same alpha, about the same
    learning rate is best for every rank."""
    quantize: Literal["nf4"] | None = Field(None, json_schema_extra=FIXED)
    """Keep the linear layers under the adapter in 4 bits, by bitsandbytes (QLoRA)."""


class CheckpointOptions(Options):
    """When the policy and the optimizer's state are saved. A checkpoint is written while training
    goes on, from a copy in CPU memory: 12 bytes per parameter. With a GPU this memory is kept, and
    twice as much if the trainer sleeps before a checkpoint is written."""

    every: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Save every N updates, and after the last. 0 saves at the end of each stage."""
    minutes: float = Field(10, ge=0, json_schema_extra=HARMLESS)
    """Save when updates of N minutes would be lost. Such a checkpoint, like one of a run that was
    asked to stop, is removed once there is a newer one. 0 saves none for the time."""
    keep: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Keep the newest N checkpoints, and those still needed: the one that the current stage began
    from, and a reference policy's. 0 keeps all that `every` asks for."""


def suite_file(word: str, folder: Path | None = None) -> Path | None:
    """Return the file that `word` names, seen from `folder`, or None: a suite of ours.

    Only a bare name is one of ours. What asks whether a suite may run and what reads it go by this.
    """
    word = word.strip()
    if re.fullmatch(r"[\w-]+", word):
        return None
    return Path(os.path.abspath((folder or Path()) / word))


class SuiteUse(Options):
    """A benchmark suite that is measured during training."""

    name: str = Field(min_length=1, json_schema_extra=HARMLESS)
    """A suite (extensions/evals/README.md), or a suite file of your own, such as mine.toml."""
    every: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Measure every N updates, and before the first and after the last. 0: only these two."""
    data: PathOrName | None = Field(None, json_schema_extra=HARMLESS)
    """A local file with the problems; the suite's data set on the hub if unset."""
    problems: int | None = Field(None, ge=1, json_schema_extra=HARMLESS)
    """Measure on N problems; all if unset."""

    @field_validator("name")
    @classmethod
    def _file_is_absolute(cls, name: str) -> str:
        return str(suite_file(name) or name.strip())

    @property
    def file(self) -> Path | None:
        """Return the suite's own file, or None if it comes with mugrpo."""
        return suite_file(self.name)

    @property
    def label(self) -> str:
        """Return the name of the suite's results."""
        return Path(self.name).stem


class EvaluationOptions(Options):
    """Accuracy on held-out problems, measured before, during and after training."""

    every: int = Field(32, ge=0, json_schema_extra=HARMLESS)
    """Evaluate every N updates, and before the first and after the last. 0 never evaluates."""
    samples: int = Field(1, ge=1, json_schema_extra=HARMLESS)
    """Responses per problem."""
    end_samples: int | None = Field(None, ge=1, json_schema_extra=HARMLESS)
    """Responses per problem before the first update and after the last, for pass@k; `samples` if
    unset."""
    greedy: bool = Field(False, json_schema_extra=HARMLESS)
    """Also sample one response per problem before the first update and after the last at a
    temperature of 0.01, which is nearly greedy."""
    temperature: float = Field(1.0, ge=1e-3, le=10, json_schema_extra=HARMLESS)
    """Sampling temperature."""
    stop_on_collapse: bool = Field(False, json_schema_extra=HARMLESS)
    """Stop the run when accuracy, or the mean reward if nothing says what is right, has fallen by
    more than half of its best, beyond the interval. The same command goes on."""
    suites: tuple[SuiteUse, ...] = Field((), json_schema_extra=HARMLESS)
    """Benchmark suites to measure beside the held-out problems, each at its own period."""


class SinkOptions(Options):
    """Where metrics go besides metrics.jsonl."""

    tensorboard: bool = Field(False, json_schema_extra=HARMLESS)
    """Write TensorBoard event files into the run's directory."""
    trackio: str | None = Field(None, json_schema_extra=HARMLESS)
    """A Trackio project to log to."""
    wandb: str | None = Field(None, json_schema_extra=HARMLESS)
    """A Weights & Biases project to log to."""
