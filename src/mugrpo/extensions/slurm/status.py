"""What `mugrpo status` says of a run's jobs."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.run_dir import RunDir
from mugrpo.extensions.slurm.command import read_jobs
from mugrpo.extensions.slurm.queue import Queued, Task, has_slurm, queued
from mugrpo.extensions.slurm.scripts import task_name

_MUGRPO, _SLURM = "mugrpo: ", "slurmstepd"  # lines of a log that say why its job ended


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
    last = {}  # a task's newest job
    for job in jobs["jobs"]:
        for part in job["parts"]:
            last[Task(job["phase"], job["stage"], part)] = job["job"]
    over = {task: job for task, job in last.items() if task not in queue}
    tries = {task: run / "slurm" / "tries" / task_name(run, *task) for task in over}
    begun = [task for task in over if tries[task].exists()]
    failed = [text for task in begun if (text := _failure(run, task, over[task], tries[task]))]
    if never := len(over) - len(begun):
        failed.append(f"{never} jobs were cancelled before they began")
    if failed:
        words = ["mugrpo", "submit", str(folder.root), *jobs["words"]]
        failed.append(f"when that is mended, type: {shlex.join(words)}")
    return [*(_line(task, job) for task, job in queue.items()), *failed]


def _line(task: Task, job: Queued) -> str:
    why = "" if job.reason in ("None", "") else f" ({job.reason})"
    return f"{_name(task, job.job)}: {job.state.lower()}{why} since {job.since}"


def _name(task: Task, job: str) -> str:
    return f"job {job}  {task}" if task.part is None else f"job {job}_{task.part}  {task}"


def _failure(run: Path, task: Task, job: str, tries: Path) -> str | None:
    """Return how a job that is over has ended, or None if it has succeeded."""
    ends = tries.read_text().splitlines()
    if ends[-1:] == ["done"]:
        return None
    log = run / "logs" / "slurm" / f"{task_name(run, *task)}.log"
    end, begin = (ends[-1], _MUGRPO) if ends else ("ended by Slurm", _SLURM)
    return f"{_name(task, job)}: {end}: {_said(log, begin)} ({log})"


def _said(log: Path, begin: str) -> str:
    """Return the last sentence of a log's last try that begins so, or its last line."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "it has no log"
    said = re.split(r"^== job .*$", text, flags=re.MULTILINE)[-1].strip().splitlines()
    found = [line for line in said if line.startswith(begin)] or said or ["it has said nothing"]
    return found[-1].removeprefix(_MUGRPO).partition(". Nothing published is lost")[0]
