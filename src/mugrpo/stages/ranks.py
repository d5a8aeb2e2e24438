"""Updates that several processes make together: started with torchrun, watched, explained.

The run that starts them keeps the lock, generates, scores and evaluates; they make the updates up
to the next evaluation or the stage's end, and leave a checkpoint there.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import torch

from mugrpo.disk.errors import RunStopped
from mugrpo.processes.ranks import DRIVER, driver_name, said_by_ranks
from mugrpo.run.run import Run
from mugrpo.stages.evaluate import evaluate_if_due, evaluation_due

_TICK = 0.2
_PATIENCE = 60.0  # seconds for ranks to end
_FAILED = re.compile(r"rank\s*: (\d+).*?exitcode\s*: (-?\d+)", re.DOTALL)


def optimize_in_ranks(run: Run, stage: int, last: int | None = None) -> None:
    """Make the stage's missing updates, to the `last`, in `distributed.processes` processes."""
    while True:
        start = max(run.newest_update, run.schedule.first_update(stage))
        evaluate_if_due(run, start)
        end = run.schedule.first_update(stage + 1)
        end = end if last is None else min(end, last)
        if start >= end:
            return
        until = next((u for u in range(start + 1, end) if evaluation_due(run, u)), end)
        run.hand_out()
        _run_ranks(run, stage, until)
        run.take_back()
        if run.newest_update <= start:
            raise RunStopped(f"the ranks made no update after {start}; see {run.dir.rank_logs()}")


def _run_ranks(run: Run, stage: int, until: int) -> None:
    """Raises Interrupted where the run was asked to stop, RunStopped naming the rank that ended."""
    logs = run.dir.rank_logs().absolute()
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    run.dir.stop_request.unlink(missing_ok=True)
    words = ["optimize", str(run.dir.root.absolute()), "--stage", str(stage), "--until", str(until)]
    try:
        if run.config.backend.name == "ray":
            from mugrpo.stages.ray_ranks import run_ray_ranks  # Ray is off the default path

            fault = run_ray_ranks(run, words, logs)
        else:
            fault = _run_local_ranks(run, words, logs)
    finally:
        run.dir.stop_request.unlink(missing_ok=True)
    run.stop.check()
    _ = run.generating  # raises what has stopped it
    if fault:
        raise RunStopped(fault)


def _run_local_ranks(run: Run, words: list[str], logs: Path) -> str | None:
    """Run `mugrpo WORDS` under torchrun; returns what went wrong."""
    count = run.config.distributed.processes
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(count), "--log-dir", str(logs)]
    command += ["--redirects", "3", "--tee", "0:1", "-m", "mugrpo", *words]
    environment = {**os.environ, DRIVER: driver_name()}
    environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = " "
    environment["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // count))
    with open(logs / "torchrun.log", "wb") as log:
        launcher = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
        )
    try:
        while launcher.poll() is None:
            run.look_after_ranks()
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(_TICK)
    finally:
        if launcher.poll() is None:
            launcher.terminate()
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(_PATIENCE)
    return _what_happened(logs, count) if launcher.returncode else None


def _what_happened(logs: Path, count: int) -> str:
    """Which rank ended first and how, in its own words where it had some."""
    text = _text(logs / "torchrun.log")
    ends = [(int(rank), int(status)) for rank, status in _FAILED.findall(text)]
    if not ends:
        return f"the {count} ranks ended; their log is {logs / 'torchrun.log'}"
    # The last is what torchrun takes for the cause: the first it saw. One that was killed comes
    # before those that miss it; SIGTERM is torchrun's own.
    killed = [end for end in ends if end[1] < 0 and end[1] != -signal.SIGTERM]
    rank, status = (killed or ends)[-1]
    log = next(iter(logs.glob(f"*/attempt_*/{rank}/stderr.log")), logs)
    others = logs.glob("*/attempt_*/*/stderr.log") if status >= 0 else ()
    if said := said_by_ranks([log]) or said_by_ranks(others):  # what one says others die of
        return said
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    return f"rank {rank} of {count} ended with {how}, and the others with it; its log is {log}"


def _text(log: Path) -> str:
    return log.read_text(errors="replace")
