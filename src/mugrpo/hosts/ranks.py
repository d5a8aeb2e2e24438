"""The host that starts ranks, which are processes, and orders them to make updates.

They are started once. Between their orders they keep the weights and the optimizer's state. The
run that starts them keeps the lock, generates, scores and evaluates.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.records import Rollout
from mugrpo.disk.run_dir import Handover, RunDir
from mugrpo.engines import reserved_gpus
from mugrpo.hosts.canary import checked_refresh
from mugrpo.hosts.engines import Engines
from mugrpo.hosts.host import Generation, Refreshed, needs_engines
from mugrpo.hosts.jobs import LocalJob
from mugrpo.hosts.orders import (
    TICK,
    Order,
    RankAnswer,
    answer_to,
    answered_logprobs,
    give,
)
from mugrpo.hosts.weights import Weights
from mugrpo.processes.ranks import Job
from mugrpo.rollouts.schedule import Draw
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage

_PATIENCE = 600.0  # seconds to wait until the ranks have saved their updates and end


class RankHost:
    """Ranks make the updates, and this process has the engines. See `Host`.

    The first order starts the ranks, if `load` has not.
    """

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._weights = Weights(run)  # of an engine in this process
        self._engines = Engines(run, self._weights)
        self._job: Job | None = None
        self._number = 0
        self._obeying = False

    @cached_property
    def beside_engines(self) -> bool:
        """Whether ranks and engines can run at once. On a cluster, each reserve what they need."""
        config = self._run.config
        if (cluster := config.backend.cluster()) is None:
            return True
        return bool(cluster.has_room(config.distributed.processes, reserved_gpus(config)))

    def load(self) -> None:
        """See `Host`. If engines will start on the ranks' GPUs, wait until the ranks sleep.

        An engine takes what is free when it starts, and fails if that grows meanwhile.
        """
        if not self.beside_engines:
            return
        self._start()
        if self._run.config.shares_gpus and torch.cuda.is_available():
            self._obeyed(Order(0, "load"))

    def engines(self, update: int, groups: Sequence[Draw], stage: str) -> Refreshed:
        """See `Host`. The canary's logprobs are the ranks', if engines leave them room."""
        self._engines.start()
        weights = self._weights
        if weights.policy is not None:
            weights.at(update)
        by_ranks = weights.policy is None and self.beside_engines
        logprobs = self.logprobs if by_ranks else weights.logprobs_for_engines
        return checked_refresh(self._run, self._engines, update, groups, stage, logprobs)

    def logprobs(self, update: int, rollouts: Sequence[Rollout]) -> list[NDArray[np.float32]]:
        """See `Host`."""
        self._obeyed(Order(0, "logprobs", update), rollouts)
        return answered_logprobs(self._run.folder)

    def update(self, stage: Stage, until: int, generation: Generation | None = None) -> None:
        """See `Host`. Meanwhile the updates, the memory and the metrics belong to the ranks.

        Raises RunStopped if they make no progress or fail.
        """
        run, start = self._run, self._run.folder.newest_update()
        self._leave(generation)
        self._weights.close()
        run.journal.close()  # the first rank writes
        order = Order(0, "optimize", until, stage.number, waits=generation is not None)
        self._obeyed(order, generation=generation)
        if not self.beside_engines:
            self._end_ranks()
        if run.folder.newest_update() <= start:
            raise RunStopped(f"the ranks made no update after {start}; see {run.folder.rank_logs}")

    def save(self, *, temporary: bool = False) -> None:
        """See `Host`. The ranks save when they end."""
        self._end_ranks()

    def sleep(self) -> None:
        """See `Host`."""
        self._engines.sleep()

    def close(self) -> None:
        """See `Host`. Raises RunStopped if the ranks could not save every update."""
        try:
            self._end_ranks()
        finally:
            self._engines.close()

    def _leave(self, generation: Generation | None) -> None:
        """Leave the machine to the ranks, unless engines generate.

        Engines in processes of their own sleep. Without room for both they end, because the ranks
        may be waiting for what they have reserved.
        """
        if needs_engines(generation):
            return
        if self.beside_engines and not self._run.config.engine_in_process:
            self._engines.sleep()
        else:
            self._engines.close()

    def _start(self, generation: Generation | None = None) -> None:
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
            beside = self.beside_engines or needs_engines(generation)
            engines = reserved_gpus(run.config) if beside else ()
            self._job = cluster.start_ranks(words, logs, options.processes, engines)
        else:
            self._job = LocalJob(words, logs, options)

    def _end_ranks(self) -> None:
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
        self,
        order: Order,
        rollouts: Sequence[Rollout] = (),
        generation: Generation | None = None,
    ) -> None:
        """Give an order, which gets the next number, and wait until it is done.

        Raises Interrupted if the run was asked to stop, and RunStopped if a rank failed.
        """
        self._start(generation)
        run, folder, job = self._run, self._run.folder, self._job
        assert job is not None
        self._number += 1
        order = replace(order, number=self._number)
        give(folder, order, rollouts)
        self._obeying = True
        while (answer := answer_to(folder, order)) is None and job.running():
            self._look_after(generation)
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
        if generation:
            generation.running()  # raises the error that stopped generation
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

    def _look_after(self, generation: Generation | None) -> None:
        """Ask the ranks to save and end if the run must stop, or if generation has failed."""
        run = self._run
        if run.stop.signal_name or (generation is not None and generation.failed()):
            run.folder.stop_request.touch()
        if not run.config.backend.clustered:
            return
        if run.folder.stop_request.exists():
            if not any(run.folder.rank_logs.glob("rank-*.log")):  # no rank can read the request
                run.stop.check()
                if generation:
                    generation.running()
        elif not self.beside_engines and not needs_engines(generation):
            self._engines.close()  # the job may be waiting for resources that they hold


class _WrittenByRanks:
    """A checkpoint that the ranks are writing; the `Pending` of the run that drives them."""

    def __init__(self, ranks: RankHost, run_dir: RunDir, answer: RankAnswer) -> None:
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
