"""Updates that several processes (ranks) make together, started and watched with torchrun.

The run that starts the ranks keeps the lock, generates, scores and evaluates. The ranks make the
updates up to the next evaluation or the end of the stage, and save a checkpoint there.
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
_PATIENCE = 60.0  # seconds to wait until the ranks end
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

    `between` is called with the number of updates, before each start of the ranks and at the end.
    Inside the block of `handed_out`, the updates, the memory and the metrics belong to the ranks;
    engines may still generate. Raises RunStopped if the ranks make no progress or fail.
    """
    while True:
        start = max(run.folder.newest_update(), stage.first_update)
        between(start)
        current = replace(stage, schedule=run.schedule())
        end = current.end if until is None else min(current.end, until)
        if start >= end:
            return
        due = (u for u in range(start + 1, end) if evaluation_due(run.config, u))
        with handed_out() as sampling:
            _run_ranks(run, stage.number, next(due, end), sampling)
        if run.folder.newest_update() <= start:
            logs = run.folder.rank_logs()
            raise RunStopped(f"the ranks made no update after {start}; see {logs}")


def look_after_ranks(run: OpenRun, sampling: Sampling) -> None:
    """Ask the ranks to save and end if the run must stop, or if generation has failed."""
    failed = sampling.background is not None and sampling.background.failed()
    if (failed or run.stop.signal_name) and not run.folder.stop_request.exists():
        run.folder.stop_request.touch()


def _run_ranks(run: OpenRun, stage: int, until: int, sampling: Sampling) -> None:
    """Run the ranks until they have made update `until`.

    Raises Interrupted if the run was asked to stop, and RunStopped if a rank failed.
    """
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
    sampling.busy()  # raises the error that stopped generation
    if fault:
        raise RunStopped(fault)


def _attend_on_cluster(run: OpenRun, sampling: Sampling, logs: Path) -> None:
    """Call `look_after_ranks`, and release engines that are idle.

    If the run must stop and no rank has started, no rank can read the stop request: raise the error
    that stops the run.
    """
    look_after_ranks(run, sampling)
    if run.folder.stop_request.exists():
        if not any(logs.glob("rank-*.log")):
            run.stop.check()
            sampling.busy()
    elif not sampling.busy():
        sampling.close()  # the job may be waiting for resources that the engines hold


def _run_local_ranks(
    count: int, words: list[str], logs: Path, look: Callable[[], None]
) -> str | None:
    """Run `mugrpo WORDS` under torchrun, calling `look` regularly. Return what went wrong."""
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
    """Return the error message of the rank that failed first, or how it ended if it has none."""
    text = (logs / "torchrun.log").read_text(errors="replace")
    ends = [(int(rank), int(status)) for rank, status in _FAILED.findall(text)]
    if not ends:
        return f"the {count} ranks failed; their log is {logs / 'torchrun.log'}"
    # torchrun lists the supposed root cause last: the failure that it noticed first. But if a rank
    # was killed, the others failed because it was gone. SIGTERM comes from torchrun itself.
    killed = [end for end in ends if end[1] < 0 and end[1] != -signal.SIGTERM]
    rank, status = (killed or ends)[-1]
    log = next(iter(logs.glob(f"*/attempt_*/{rank}/stderr.log")), logs)
    others = logs.glob("*/attempt_*/*/stderr.log") if status >= 0 else ()
    if said := said_by_ranks([log]) or said_by_ranks(others):  # or why they all ended
        return said
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    return f"rank {rank} of {count} ended with {how}, and the others with it; its log is {log}"
