"""The ranks of a run, as the process that drives them sees them.

They are started once. Between their orders they keep the weights and the optimizer's state. The
run that starts them keeps the lock, generates, scores and evaluates.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from threading import Thread

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.config.training import DistributedOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.records import Rollout
from mugrpo.disk.run_dir import Handover, RunDir
from mugrpo.engines import reserved_gpus
from mugrpo.engines.process import visible_gpus
from mugrpo.processes.lifetime import start_rank
from mugrpo.processes.ranks import Job, said_by_ranks, show_log, within_a_machine
from mugrpo.run.opening import OpenRun
from mugrpo.stages.evaluate import measuring_due
from mugrpo.stages.orders import (
    TICK,
    Order,
    OrderTask,
    RankAnswer,
    answer_to,
    answered_logprobs,
    give,
)
from mugrpo.stages.sampling import Sampling
from mugrpo.stages.stage import Stage

_ENDING = 60.0  # seconds to wait until ranks that got a signal end
_GRACE = 30.0  # the same if another rank has failed
_PATIENCE = 600.0  # seconds to wait until the ranks have saved their updates and end


def require_gpus(options: DistributedOptions) -> None:
    """Raise UsageError if this machine has GPUs, but not one for each of its ranks."""
    if 0 < (gpus := len(visible_gpus())) < options.processes:
        raise UsageError(
            f"distributed.processes = {options.processes} needs as many GPUs, but this process "
            f"sees {gpus}; set --distributed.processes {gpus}, or name more of them in "
            "CUDA_VISIBLE_DEVICES"
        )


class LocalJob:
    """The ranks on this machine. If one fails, the others end."""

    def __init__(self, words: Sequence[str], logs: Path, options: DistributedOptions) -> None:
        """Start ranks that run `mugrpo WORDS`. Their output goes to `logs`. See `require_gpus`."""
        require_gpus(options)
        self._logs, self._count = logs, options.processes
        self._ended: list[tuple[int, int]] = []  # (rank, status) of those that failed, in order
        self._shown = 0  # bytes of the first rank's log
        environment = {
            **within_a_machine(tempfile.mkdtemp(dir=logs)),  # only this user enters it
            "WORLD_SIZE": str(self._count),
            "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // self._count)),
        }
        command = [sys.executable, "-m", "mugrpo", *words]
        self._processes = [
            start_rank(
                command, logs / f"rank-{rank}", {**environment, "RANK": rank, "LOCAL_RANK": rank}
            )
            for rank in map(str, range(self._count))
        ]
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def running(self) -> bool:
        """Return whether any rank runs. Print what the first has said since the last call."""
        running = self._thread.is_alive()
        self._shown = show_log(self._logs / "rank-0.log", self._shown)
        return running

    def end(self, patience: float) -> None:
        self._thread.join(patience)
        self._terminate(_ENDING)
        self.running()  # prints the last lines

    def fault(self) -> str | None:
        """Return the error message of the rank that failed first, or how it ended without one."""
        if not self._ended:
            return None
        # If a rank was killed, the others failed because it was gone. SIGTERM comes from here.
        killed = [end for end in self._ended if end[1] < 0 and end[1] != -signal.SIGTERM]
        rank, status = (killed or self._ended)[0]
        log = self._logs / f"rank-{rank}.err"
        others = self._logs.glob("rank-*.err") if status >= 0 else ()
        if said := said_by_ranks([log]) or said_by_ranks(others):  # or why they all ended
            return said
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return (
            f"rank {rank} of {self._count} ended with {how}, and the others with it; its log is "
            f"{log}"
        )

    def _watch(self) -> None:
        """Wait until the ranks end."""
        left = dict(enumerate(self._processes))
        while left:
            for rank, process in list(left.items()):
                if (status := process.poll()) is not None:
                    del left[rank]
                    if status:
                        self._ended.append((rank, status))
            if left and self._ended:
                self._terminate(_GRACE)
            time.sleep(TICK)

    def _terminate(self, patience: float) -> None:
        """Let the ranks save and end. Kill those that have not after `patience` seconds."""
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            process.terminate()
        until = time.monotonic() + patience
        while any(p.poll() is None for p in running) and time.monotonic() < until:
            time.sleep(TICK)
        for process in running:
            process.kill()


class RankProcesses:
    """The ranks of a run. The first order starts them, if `start` has not."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._job: Job | None = None
        self._number = 0
        self._obeying = False
        self.sampling: Sampling | None = None  # whose engines may run beside the ranks

    @cached_property
    def beside_engines(self) -> bool:
        """Whether ranks and engines can run at once. On a cluster, each reserve what they need."""
        config = self._run.config
        if (cluster := config.backend.cluster()) is None:
            return True
        return bool(cluster.has_room(config.distributed.processes, reserved_gpus(config)))

    def start(self) -> None:
        """Start the ranks, unless they run. They load the newest checkpoint at once."""
        if self._job is not None:
            return
        run, folder = self._run, self._run.folder
        logs = folder.rank_logs.absolute()
        for old in (logs, folder.ranks):
            shutil.rmtree(old, ignore_errors=True)
            old.mkdir(parents=True)
        words = ["optimize", str(folder.root.absolute())]
        options = run.config.distributed
        if cluster := run.config.backend.cluster():
            beside = self.beside_engines or (self.sampling is not None and self.sampling.busy())
            engines = reserved_gpus(run.config) if beside else ()
            self._job = cluster.start_ranks(words, logs, options.processes, engines)
        else:
            self._job = LocalJob(words, logs, options)

    def load(self) -> None:
        """Start the ranks. If engines will start on their GPUs, wait until the ranks sleep.

        An engine takes what is free when it starts, and fails if that grows meanwhile.
        """
        self.start()
        if self._run.config.shares_gpus and torch.cuda.is_available():
            self._obeyed("load")

    def optimize(self, stage: int, until: int) -> None:
        """Let the ranks make the updates of `stage` up to `until`."""
        self._obeyed("optimize", until, stage)
        if not self.beside_engines:
            self.close()

    def logprobs(self, update: int, rollouts: Sequence[Rollout]) -> list[NDArray[np.float32]]:
        """Return the logprobs [T] of each rollout's response after `update` updates."""
        if not rollouts:
            return []
        self._obeyed("logprobs", update, rollouts=rollouts)
        return answered_logprobs(self._run.folder)

    def logprobs_for_engines(
        self, update: int, rollouts: Sequence[Rollout]
    ) -> list[NDArray[np.float32]]:
        """Return what `logprobs` does, from this process if engines leave ranks no room."""
        assert self.sampling is not None
        own = self.sampling.own_logprobs
        return (self.logprobs if self.beside_engines else own)(update, rollouts)

    def close(self) -> None:
        """End the ranks, if they run. Raises RunStopped if they could not save every update."""
        if (job := self._job) is None:
            return
        folder, obeying = self._run.folder, self._obeying
        if not obeying:
            self._number += 1
            give(folder, Order(self._number, "end"))
        job.end(0.0 if obeying else _PATIENCE)
        made, folder.handover = folder.newest_update(), None
        try:
            folder.settle()
            if folder.saved_update() < made and not obeying:
                raise RunStopped(self._reason(job))
        finally:
            self._job, self._obeying = None, False
            shutil.rmtree(folder.ranks, ignore_errors=True)

    def _obeyed(
        self, task: OrderTask, update: int = 0, stage: int = 0, rollouts: Sequence[Rollout] = ()
    ) -> None:
        """Give an order and wait until it is done.

        Raises Interrupted if the run was asked to stop, and RunStopped if a rank failed.
        """
        self.start()
        run, folder, job = self._run, self._run.folder, self._job
        assert job is not None
        self._number += 1
        order = Order(self._number, task, update, stage)
        give(folder, order, rollouts)
        self._obeying = True
        while (answer := answer_to(folder, order)) is None and job.running():
            self._look_after()
            time.sleep(TICK)
        self._obeying = False
        if answer := answer or answer_to(folder, order):
            if answer.model:
                folder.handover = Handover(answer.update, Path(answer.model))
            if answer.saved and answer.update not in (0, *folder.checkpoint_updates()):
                folder.pending = _WrittenByRanks(self, folder, answer)
            return
        self._job = folder.handover = None
        shutil.rmtree(folder.ranks, ignore_errors=True)
        run.stop.check()
        if self.sampling:
            self.sampling.busy()  # raises the error that stopped generation
        raise RunStopped(self._reason(job))

    def running(self) -> bool:
        """Return whether the ranks run."""
        return self._job is not None and self._job.running()

    def take_error(self) -> RunStopped:
        """Return the error that ranks have ended with, which no longer run."""
        job, self._job = self._job, None
        return RunStopped(self._reason(job))

    def _reason(self, job: Job | None) -> str:
        said = job.fault() if job else None
        return said or "the ranks ended before their work was done"

    def _look_after(self) -> None:
        """Ask the ranks to save and end if the run must stop, or if generation has failed."""
        run, sampling = self._run, self.sampling
        background = sampling.background if sampling else None
        if run.stop.signal_name or (background is not None and background.failed()):
            run.folder.stop_request.touch()
        if not run.config.backend.clustered or sampling is None:
            return
        if run.folder.stop_request.exists():
            if not any(run.folder.rank_logs.glob("rank-*.log")):  # no rank can read the request
                run.stop.check()
                sampling.busy()
        elif not self.beside_engines and not sampling.busy():
            sampling.close()  # the job may be waiting for resources that the engines hold


class _WrittenByRanks:
    """A checkpoint that the ranks are writing; the `Pending` of the run that drives them."""

    def __init__(self, ranks: RankProcesses, run_dir: RunDir, answer: RankAnswer) -> None:
        self.update = answer.update
        self.folder = Path(answer.checkpoint)
        self._ranks, self._run_dir = ranks, run_dir

    def ready(self) -> None:
        """The ranks have answered, so the model is complete."""

    def published(self, *, wait: bool) -> bool:
        while True:
            running = self._ranks.running()
            if max(self._run_dir.checkpoint_updates(), default=0) >= self.update:
                return True  # with a later one, this one may be removed already
            if not running:
                raise self._ranks.take_error()
            if not wait:
                return False
            time.sleep(TICK)


def optimize_in_ranks(
    run: OpenRun,
    stage: Stage,
    ranks: RankProcesses,
    *,
    between: Callable[[int], None],
    left_to_ranks: Callable[[], AbstractContextManager[None]],
    until: int | None = None,
) -> None:
    """Let `ranks` make the stage's missing updates, up to `until`.

    They work up to the next evaluation or the end of the stage, and hand the model over there.
    `between` is called with the number of updates, before each order and at the end. Inside the
    block of `left_to_ranks`, the updates, the memory and the metrics belong to the ranks; engines
    may still generate. Raises RunStopped if the ranks make no progress or fail.
    """
    while True:
        start = max(run.folder.newest_update(), stage.first_update)
        between(start)
        end = stage.end if until is None else min(stage.end, until)
        if start >= end:
            return
        due = (u for u in range(start + 1, end) if measuring_due(run.config, u))
        with left_to_ranks():
            ranks.optimize(stage.number, next(due, end))
        if run.folder.newest_update() <= start:
            logs = run.folder.rank_logs
            raise RunStopped(f"the ranks made no update after {start}; see {logs}")
