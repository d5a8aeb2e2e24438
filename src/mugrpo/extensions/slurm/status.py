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
    begun = [task for task in over if _tries(run, task).exists()]
    failed = [text for task in begun if (text := _failure(run, task, over[task]))]
    if never := len(over) - len(begun):
        unseen = "" if any((run / "logs" / "slurm").glob("*")) else f"; nodes must share {run}"
        failed.append(f"{never} jobs were cancelled before they began{unseen}")
    if failed:
        words = ["mugrpo", "submit", str(folder.root), *jobs["words"]]
        failed.append(f"to go on, type: {shlex.join(words)}")
    return [*(_line(run, task, job) for task, job in queue.items()), *failed]


def _tries(run: Path, task: Task) -> Path:
    return run / "slurm" / "tries" / task_name(run, *task)


def _line(run: Path, task: Task, job: Queued) -> str:
    why = "" if job.reason in ("None", "") else f" ({job.reason})"
    line = f"{_name(task, job.job)}: {job.state.lower()}{why} since {job.since}"
    file = _tries(run, task)
    if job.state == "PENDING" and file.exists() and (tries := file.read_text().count("failed")):
        line += f"; {tries} tries failed, the last one: {_said(run, task, _MUGRPO)}"
    return line


def _name(task: Task, job: str) -> str:
    return f"job {job}  {task}" if task.part is None else f"job {job}_{task.part}  {task}"


def _failure(run: Path, task: Task, job: str) -> str | None:
    """Return how a job that is over has ended, or None if it has succeeded."""
    ends = _tries(run, task).read_text().splitlines()
    if ends[-1:] == ["done"]:
        return None
    end, begin = (ends[-1], _MUGRPO) if ends else ("ended by Slurm", _SLURM)
    return f"{_name(task, job)}: {end}: {_said(run, task, begin)}"


def _said(run: Path, task: Task, begin: str) -> str:
    """Return the last sentence of the log's last try that begins so, or its last line."""
    log = run / "logs" / "slurm" / f"{task_name(run, *task)}.log"
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "it has no log"
    said = re.split(r"^== job .*$", text, flags=re.MULTILINE)[-1].strip().splitlines()
    found = [line for line in said if line.startswith(begin)] or said or ["it has said nothing"]
    sentence = found[-1].removeprefix(_MUGRPO).partition(". Nothing published is lost")[0]
    last = _tries(run, task).read_text().strip().rpartition("\n")[2]
    if sentence.startswith("stopped by SIGTERM") and last.startswith("failed"):
        sentence += "; give it more `time` in slurm.toml"
    return f"{sentence} ({log})"
