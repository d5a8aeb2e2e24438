"""What slurm.toml says."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from mugrpo.config.base import Options
from mugrpo.config.load import read_toml, validated
from mugrpo.disk.errors import UsageError

_OURS = ("array", "dependency", "job-name", "output", "error", "parsable", "wrap", "wait")


def _flags(flags: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
    for name in flags:
        if name.replace("-", "_") in SlurmOptions.model_fields:
            raise ValueError(f"{name} is no option of sbatch; write it above the first [table]")
        if name in _OURS:
            raise ValueError(f"{name} is set by `mugrpo submit`; leave it out")
    return flags


Flags = Annotated[dict[str, str | int | bool], AfterValidator(_flags)]


class SlurmOptions(Options):
    """How a run's jobs are made. The tables hold long options of sbatch, without their dashes."""

    parts: int = Field(1, ge=1)
    """Jobs that share a stage's shards: a part generates each Nth shard, and scores it."""
    at_once: int = Field(0, ge=0)
    """Parts that may run at once. 0 sets no limit."""
    retries: int = Field(2, ge=0)
    """How often a job that fails is tried again. What Slurm ends is not counted: by preemption, by
    the loss of a node, or by the time limit after something was published."""
    wait: int = Field(60, ge=1)
    """Minutes that updates `--beside` generation wait for shards that no job is at work on."""
    activate: tuple[str, ...] = ()
    """Lines of shell that put `mugrpo` on the PATH. Without any, jobs use the interpreter that
    submits them."""
    sbatch: Flags = Field(default_factory=dict)
    """Options of every job."""
    generate: Flags = Field(default_factory=dict)
    """Options of the jobs that generate."""
    score: Flags = Field(default_factory=dict)
    """Options of the jobs that score."""
    optimize: Flags = Field(default_factory=dict)
    """Options of the jobs that make updates."""

    @field_validator("activate")
    @classmethod
    def _one_line_each(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        if any("\n" in line for line in lines):
            raise ValueError("write each line as a string of its own")
        return lines


def read_settings(file: Path) -> SlurmOptions:
    """Return the options in `file`. Raises UsageError if it cannot be read, or for a bad option."""
    if not file.exists():
        raise UsageError(f"{file}: there is no such file; write one, or name it with --slurm")
    return validated(SlurmOptions, read_toml(file), str(file))
