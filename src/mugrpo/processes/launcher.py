"""What the program that launched this process says of it, in its environment: Slurm, torchrun.

https://slurm.schedmd.com/sbatch.html, https://slurm.schedmd.com/srun.html and
https://docs.pytorch.org/docs/stable/elastic/run.html have the variables.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping

from mugrpo.disk.errors import UsageError

_ASKED_AGAIN = 30.0  # seconds for which an answer of the scheduler's holds
_PORTS = range(20_000, 60_000)
_answers: dict[str, tuple[float, bool]] = {}


def job_id() -> str:
    """Return the scheduler's id of the job that this process is part of, or "".

    A task of an array is named by the array: the job id of its last task is that of them all.
    """
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID", "")


def restarts() -> int:
    """Return how often the job was requeued."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def job_is_gone(job: str) -> bool:
    """Return whether the scheduler says that a job of it does not run. False if it cannot say."""
    asked, gone = _answers.get(job, (-_ASKED_AGAIN, False))
    if time.monotonic() - asked >= _ASKED_AGAIN:
        gone = _asked(job)
        _answers[job] = time.monotonic(), gone
    return gone


def _asked(job: str) -> bool:
    if (squeue := shutil.which("squeue")) is None:
        return False
    words = [squeue, "--noheader", "--jobs", job, "--format", "%T"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=20, env=os.environ)
    except (OSError, subprocess.TimeoutExpired):
        return False
    if said.returncode:
        return "Invalid job id" in said.stderr
    return set(said.stdout.split()) <= {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}


def forget_launcher() -> None:
    """Let this process, and all that it starts, be no rank of a launcher's."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS"):
        os.environ.pop(name, None)


def launched_ranks(environment: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """Return torch's variables of this rank, if torchrun or srun has launched several, else None.

    Raises UsageError if Slurm cannot say on which machine the first rank is.
    """
    if int(environment.get("WORLD_SIZE", "1")) > 1:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        if missing := [name for name in names if name not in environment]:
            raise UsageError(
                f"WORLD_SIZE is {environment['WORLD_SIZE']}, but {missing[0]} is not set; start "
                "ranks with torchrun or srun"
            )
        return {name: environment[name] for name in names}
    # in a batch script, which is a single process, only SLURM_NTASKS is set
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
        return None
    job = int(environment["SLURM_JOB_ID"])
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "MASTER_ADDR": _first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(_PORTS[job % len(_PORTS)]),
    }


def _first_host(nodes: str) -> str:
    """Return the first of the machines that Slurm lists as n[1-3,7]."""
    if nodes.isalnum():
        return nodes
    try:
        words = ["scontrol", "show", "hostnames", nodes]
        said = subprocess.run(
            words, capture_output=True, text=True, timeout=60, check=True, env=os.environ
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"scontrol does not say which machines {nodes} are ({error}); start the ranks with "
            "torchrun instead"
        ) from None
    return said.stdout.split()[0]
