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
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from mugrpo.config.backends import RayBackend
from mugrpo.disk.errors import RunStopped
from mugrpo.processes.ranks import DRIVER, driver_name, said_by_ranks
from mugrpo.run.opened import OpenRun
from mugrpo.stages.evaluate import evaluation_due
from mugrpo.stages.sampling import Sampling
from mugrpo.stages.stage import Stage

_TICK = 0.2
_PATIENCE = 60.0  # seconds for ranks to end
_FAILED = re.compile(r"rank\s*: (\d+).*?exitcode\s*: (-?\d+)", re.DOTALL)


def optimize_in_ranks(
    run: OpenRun,
    stage: Stage,
    *,
    between: Callable[[int], None],
    handed_out: Callable[[], AbstractContextManager[Sampling]],
    until: int | None = None,
) -> None:
    """Make the stage's missing updates, up to `until`, in `distributed.processes` processes.

    `between` is called with the number of updates before each start of ranks and at the end. In the
    block of `handed_out` updates, memory and metrics are theirs; engines may still generate.
    """
    while True:
        start = max(run.folder.newest_update(), stage.first_update)
        between(start)
        now = replace(stage, schedule=run.schedule())
        end = now.end if until is None else min(now.end, until)
        if start >= end:
            return
        due = (u for u in range(start + 1, end) if evaluation_due(run.config, u))
        with handed_out() as sampling:
            _run_ranks(run, stage.number, next(due, end), sampling)
        if run.folder.newest_update() <= start:
            logs = run.folder.rank_logs()
            raise RunStopped(f"the ranks made no update after {start}; see {logs}")


def look_after_ranks(run: OpenRun, sampling: Sampling) -> None:
    """Ask the ranks to save and end if the run stops, or if the shards they wait for are lost."""
    lost = sampling.background is not None and sampling.background.failed()
    if (lost or run.stop.signal_name) and not run.folder.stop_request.exists():
        run.folder.stop_request.touch()


def _run_ranks(run: OpenRun, stage: int, until: int, sampling: Sampling) -> None:
    """Raises Interrupted if the run was asked to stop, RunStopped naming the rank that ended."""
    logs = run.folder.rank_logs().absolute()
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    run.folder.stop_request.unlink(missing_ok=True)
    words = ["optimize", str(run.folder.root.absolute())]
    words += ["--stage", str(stage), "--until", str(until)]
    try:
        if isinstance(run.config.backend, RayBackend):
            from mugrpo.stages.ray_ranks import run_ray_ranks  # Ray is off the default path

            fault = run_ray_ranks(
                run.config.backend,
                words,
                logs,
                count=run.config.distributed.processes,
                engines=sampling.on_cluster(),
                attend=partial(_attend_on_cluster, run, sampling, logs),
            )
        else:
            look = partial(look_after_ranks, run, sampling)
            fault = _run_local_ranks(run.config.distributed.processes, words, logs, look)
    finally:
        run.folder.stop_request.unlink(missing_ok=True)
    run.stop.check()
    sampling.busy()  # raises what has stopped the generation
    if fault:
        raise RunStopped(fault)


def _attend_on_cluster(run: OpenRun, sampling: Sampling, logs: Path) -> None:
    """See `look_after_ranks`. Raises what stops the run if no rank has begun to hear of it."""
    look_after_ranks(run, sampling)
    if run.folder.stop_request.exists():
        if not any(logs.glob("rank-*.log")):
            run.stop.check()
            sampling.busy()
    elif not sampling.busy():
        sampling.close()  # the job may be waiting for what engines hold


def _run_local_ranks(
    count: int, words: list[str], logs: Path, look: Callable[[], None]
) -> str | None:
    """Run `mugrpo WORDS` under torchrun and call `look` meanwhile. Returns what went wrong."""
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
            look()
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
    text = (logs / "torchrun.log").read_text(errors="replace")
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
