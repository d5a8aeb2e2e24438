"""Slurm's programs: what is queued, and what is submitted and cancelled."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.extensions.slurm.scripts import PHASES

_FORMAT = "%F|%K|%T|%r|%S|%V|%o"
_COMMAND = re.compile(rf"(?P<root>.*)/slurm/(?P<phase>{'|'.join(PHASES)})\.sh (?P<stage>\d+)")


class Task(NamedTuple):
    """What a job does: a phase of a stage, and of an array the number of the part."""

    phase: str
    stage: int
    part: int | None = None

    def __str__(self) -> str:
        part = "" if self.part is None else f", part {self.part}"
        return f"{self.phase} of stage {self.stage}{part}"


class Queued(NamedTuple):
    """A job that is queued or runs."""

    job: str  # of an array, the array's
    state: str
    reason: str  # why it does not run
    since: str  # when it began, or was submitted

    @property
    def depends(self) -> bool:
        """Return whether it waits for another job, which may be over."""
        return self.state == "PENDING" and self.reason.startswith("Dependency")


def has_slurm() -> bool:
    return shutil.which("squeue") is not None and shutil.which("sbatch") is not None


def queued(run: Path) -> dict[Task, Queued]:
    """Return this user's jobs of a run that are not over. Raises RunStopped if Slurm is silent."""
    found = {}
    for line in _said(
        "squeue", "--me", "--array", "--noheader", f"--format={_FORMAT}"
    ).splitlines():
        job, part, state, reason, begin, submitted, command = line.split("|", 6)
        match = _COMMAND.match(command)
        if match and match["root"] == str(run):
            task = Task(match["phase"], int(match["stage"]), int(part) if part.isdigit() else None)
            since = submitted if state == "PENDING" else begin
            found[task] = Queued(job, state, reason, since)
    return found


def submit(words: Sequence[str]) -> str:
    """Submit a job with `sbatch WORDS`. Return its id. Raises UsageError if it is refused."""
    try:
        return _said("sbatch", "--parsable", *words).strip().partition(";")[0]
    except RunStopped as error:
        raise UsageError(
            f"{error}; change slurm.toml if it is at fault, and submit again: what is queued is "
            "not submitted twice"
        ) from None


def cancel(job: str) -> None:
    _said("scancel", job)


def _said(program: str, *words: str) -> str:
    """Return what a program of Slurm's prints. Raises RunStopped if it fails."""
    ended = subprocess.run(
        [program, *words],
        env=os.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        why = ended.stderr.strip().splitlines() or [f"status {ended.returncode}"]
        raise RunStopped(f"{program} failed: {'; '.join(why)}")
    return ended.stdout
