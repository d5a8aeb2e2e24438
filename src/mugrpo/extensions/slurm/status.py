"""What `mugrpo status` says of a run's jobs."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.run_dir import RunDir
from mugrpo.extensions.slurm.command import read_jobs
from mugrpo.extensions.slurm.queue import Queued, Task, has_slurm, queued
from mugrpo.extensions.slurm.scripts import task_name

_SAYS = ("mugrpo: ", "slurmstepd", "srun: error: ")  # lines that say why a job ended, best first


def lines(folder: RunDir) -> Sequence[str]:
    """Return a line for each job that is queued, runs or has failed, and what to type then."""
    run = folder.root.resolve()
    jobs = read_jobs(run)
    if not jobs["jobs"]:
        return []
    if not has_slurm():
        return ["Slurm: no squeue here; log in where jobs are submitted to see them"]
    try:
        queue = queued(run)
    except RunStopped as error:
        return [f"Slurm: {error}"]
    found = [_line(task, one) for task, one in queue.items()]
    failed = list(_failed(run, jobs["jobs"], queue))
    if failed:
        words = ["mugrpo", "submit", str(folder.root), *jobs["words"]]
        failed.append(f"when that is fixed, type: {shlex.join(words)}")
    return [*found, *failed]


def _line(task: Task, job: Queued) -> str:
    why = "" if job.reason in ("None", "") else f" ({job.reason})"
    part = "" if task.part is None else f"_{task.part}"
    return f"job {job.job}{part}  {task}: {job.state.lower()}{why} since {job.since}"


def _failed(run: Path, jobs: Sequence[dict[str, Any]], queue: dict[Task, Queued]) -> Iterator[str]:
    """Yield a line for each task that is over without success. Those that never began have none."""
    last = {}  # a task's newest job
    for job in jobs:
        for part in job["parts"]:
            last[Task(job["phase"], job["stage"], part)] = job["job"]
    for task, job in last.items():
        name = task_name(run, *task)
        file = run / "slurm" / "tries" / name
        if task in queue or not file.exists():
            continue
        ends = file.read_text().splitlines()
        if ends[-1:] == ["done"]:
            continue
        log = run / "logs" / "slurm" / f"{name}.log"
        part = "" if task.part is None else f"_{task.part}"
        end = ends[-1] if ends else "ended by Slurm"
        yield f"job {job}{part}  {task}: {end}: {_said(log)} ({log})"


def _said(log: Path) -> str:
    """Return the last sentence in a log that says why its job ended."""
    try:
        said = log.read_text(errors="replace").splitlines()
    except OSError:
        return "it has no log"
    for begin in _SAYS:
        for line in reversed(said):
            if line.startswith(begin):
                return line.removeprefix("mugrpo: ")
    return said[-1] if said else "it has said nothing"
