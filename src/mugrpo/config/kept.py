"""Options that decide what a run measures and keeps."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from mugrpo.config.options import HARMLESS, LISTED, Options, PathOrName, absolute


class CheckpointOptions(Options):
    """When the policy and the optimizer's state are saved."""

    every: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Save every N updates. 0 saves only at the end of each stage."""
    stage_end: bool = Field(True, json_schema_extra=HARMLESS)
    """Save at the end of every stage. The last update is always saved."""
    minutes: float = Field(10, ge=0, json_schema_extra=HARMLESS)
    """Save when updates of N minutes would be lost. Such a checkpoint, like one of a run that was
    asked to stop, is removed once there is a newer one. 0 saves none for the time."""
    keep: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Keep the newest N checkpoints, and those still needed: the one that the current stage began
    from, and a reference policy's. 0 keeps all that `every` and `stage_end` ask for."""
    best: str | None = Field(None, json_schema_extra=HARMLESS)
    """Also keep the checkpoint with the highest avg@k on this suite, one of evaluation.suites. The
    policy is then saved whenever the suite is measured."""
    beside_training: bool = Field(True, json_schema_extra=HARMLESS)
    """Write a checkpoint while training goes on, from a copy in CPU memory: 12 bytes per parameter.
    Otherwise training waits until it is written."""


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
    samples: int | None = Field(None, ge=1, le=LISTED, json_schema_extra=HARMLESS)
    """Responses per problem; the suite's number if unset."""
    max_new_tokens: int | None = Field(None, ge=1, le=LISTED, json_schema_extra=HARMLESS)
    """Longest response in tokens; the suite's if unset."""
    temperature: float | None = Field(None, ge=1e-3, le=10, json_schema_extra=HARMLESS)
    """Sampling temperature; rollouts.temperature if unset."""
    top_p: float = Field(1.0, gt=0, le=1, json_schema_extra=HARMLESS)
    """Sample from the most likely tokens with this probability."""

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
    """Keep rollouts of every N-th update, and of a stage's first and last planned update. 0 keeps
    none."""
    count: int = Field(4, ge=1, le=LISTED, json_schema_extra=HARMLESS)
    """Rollouts kept per update, half of them with a negative advantage if there are any."""


class SinkOptions(Options):
    """Where metrics go besides metrics.jsonl."""

    tensorboard: bool = Field(False, json_schema_extra=HARMLESS)
    """Write TensorBoard event files into the run's directory."""
    trackio: str | None = Field(None, json_schema_extra=HARMLESS)
    """A trackio project to log to."""
    wandb: str | None = Field(None, json_schema_extra=HARMLESS)
    """A Weights & Biases project to log to."""
