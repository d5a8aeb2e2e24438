"""Worker processes for the code of others, such as reward functions: both of their sides.

The run has a `WorkerPool`. The program of its workers calls `serve`: it loads what it needs, says
that it is ready, then answers one call after another.
"""

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import BrokenReward, RunStopped, UsageError
from mugrpo.processes.child import Channel, cpu_deadline, limit_memory
from mugrpo.processes.messages import printable, to_json
from mugrpo.processes.peer import TICK, Peer, PeerLost, audible

STARTING_SECONDS = 600.0  # for imports: verifiers imports much, and may be compiled first
_DEATHS = 2  # workers that may die in a job's calls before it fails: once may be chance


@dataclass(frozen=True)
class Limits:
    """What a worker may take for a call. 0 sets no limit."""

    seconds: float  # by the clock, for each completion in it
    computing: float  # seconds of CPU time, likewise
    megabytes: int  # of memory


class Worker(Peer):
    """A process that answers calls. Its silence is limited only while it works on one.

    It runs `python -m MODULE`, or the file `module` if `python` names another interpreter.
    `kind` is what an error message calls it. Its program gets `setup` with the limits. Raises
    OSError if it cannot be run.
    """

    def __init__(
        self,
        module: str,
        setup: dict[str, Any],
        limits: Limits,
        *,
        kind: str,
        log: Path | None,
        python: str | None = None,
    ) -> None:
        environment = {
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "PYTHONHASHSEED": "0",  # so that an answer does not depend on the order of a set
        }
        super().__init__(
            [sys.executable, "-m", module] if python is None else [python, module],
            to_json({**setup, "memory_mb": limits.megabytes, "timeout": limits.computing}),
            silence=STARTING_SECONDS,
            environment=environment,
            log=log,
        )
        self.limits, self.kind = limits, kind
        self.ready = False
        self.jobs: list[Any] = []  # all that it has
        self.sent: deque[Any] = deque()  # those whose answers it owes, in order

    def loss(self, lost: PeerLost) -> tuple[str, bool]:
        """Return why a call failed, and whether that is because it took too much time."""
        size = self.sent[0].size if self.sent else 1
        if lost.ended is None:
            return f"not finished within {self.limits.seconds * size:g} seconds", True
        if lost.ended == signal.SIGPROF.name:
            seconds = self.limits.computing * size
            return f"not finished after {seconds:g} seconds of computing", True
        return f"the worker died ({lost.ended})", False

    def never_ready(self, lost: PeerLost) -> RunStopped:
        """Return the error for a worker that is lost before it is ready."""
        if lost.ended is None:
            return RunStopped(f"a {self.kind} was not ready after {STARTING_SECONDS:g} seconds")
        return RunStopped(f"a {self.kind} died while it was loading ({lost.ended})")


class PoolJob:
    """What a worker works on: one call, or all that is said in a rollout."""

    deaths = 0  # of workers, in its calls

    @property
    def size(self) -> int:
        """Return how many times the limits of time its calls have."""
        return 1


class WorkerPool(ABC):
    """Workers that can be killed, `count` of them, and their jobs.

    A single thread sends calls to workers that have answered all earlier ones, then waits until one
    answers, dies or reaches a deadline. A killed worker is replaced at once, and the others
    continue while the new one loads.

    There are two deadlines. The kernel limits the time that a worker computes on a call: a busy
    machine does not change who reaches it. This process limits the time that a call may take with
    all its waiting (`Limits.seconds`). The job of a call that takes too much fails. If a worker
    just dies, its job gets a second one, as something else may have killed it.

    Output goes to `log`, or to stderr. `what` is what users call the loaded code.
    """

    def __init__(
        self,
        module: str,
        setup: dict[str, Any],
        limits: Limits,
        count: int,
        *,
        what: str,
        log: Path | None = None,
    ) -> None:
        self._module, self._setup, self._limits, self._count = module, setup, limits, count
        self._what, self.log = what, log
        self._python: str | None = None  # another interpreter, for a module that is a file
        self._workers: list[Worker] = []
        self.greeting: dict[str, Any] = {}  # from a worker that was ready, if any has been

    @abstractmethod
    def _calls_for(self, worker: Worker) -> Iterator[tuple[Any, str]]:
        """Yield (job, JSON text of a call) to send now to a worker that owes no answer."""

    @abstractmethod
    def _hear(self, worker: Worker, job: Any, message: dict[str, Any]) -> None:
        """Handle the answer to a job's call."""

    @abstractmethod
    def _fail(self, job: Any, reason: str, unfinished: bool) -> None:
        """Let a job fail; `unfinished` if it took too much time or memory."""

    @abstractmethod
    def _assign(self, jobs: Sequence[Any]) -> None:
        """Give the jobs of a worker that has ended to others."""

    def close(self) -> None:
        """End all workers."""
        while self._workers:
            self._workers.pop().end()

    def _start_missing(self) -> None:
        """Start workers up to their number."""
        while len(self._workers) < self._count:
            self._workers.append(self._new_worker())

    def _new_worker(self, **setup: Any) -> Worker:
        kind = f"worker of the {self._what}"
        options = {**self._setup, **setup}
        return Worker(
            self._module, options, self._limits, kind=kind, log=self.log, python=self._python
        )

    def _dispatch(self) -> None:
        for worker in [w for w in self._workers if w.ready and not w.sent]:
            for job, text in self._calls_for(worker):
                worker.sent.append(job)
                worker.jobs += [job] if job not in worker.jobs else []
                worker.silence = self._limits.seconds * worker.sent[0].size or None
                try:
                    worker.send(text)
                except PeerLost as lost:
                    self._lose(worker, lost)
                    break

    def _attend(self, patience: float = TICK) -> None:
        """Wait until workers answer, end or reach their deadlines, and handle each of these events.

        Wait for at most `patience` seconds. Raises UsageError if the code cannot be loaded,
        RunStopped if a worker is lost before it is ready, and BrokenReward if it breaks its
        contract.
        """
        self._dispatch()
        for worker in audible(self._workers, patience):
            try:
                while worker in self._workers and (message := worker.hear(0.0)) is not None:
                    self._take(worker, message)
            except PeerLost as lost:
                self._lose(worker, lost)
        self._dispatch()

    def _take(self, worker: Worker, message: dict[str, Any]) -> None:
        if "refused" in message:
            self.close()
            raise UsageError(message["refused"])
        if "broken" in message:
            self.close()
            raise BrokenReward(
                f"{message['broken']}; fix it (--force accepts the changed {self._what})"
            )
        if "ready" in message:
            worker.ready, worker.silence, self.greeting = True, None, message
            return
        job = worker.sent.popleft()
        seconds = self._limits.seconds * worker.sent[0].size if worker.sent else 0.0
        worker.silence = seconds or None
        self._hear(worker, job, message)
        if message.get("spent"):
            self._retire(worker)

    def _lose(self, worker: Worker, lost: PeerLost) -> None:
        """Handle a worker that died or reached a deadline."""
        if not worker.ready:
            self.close()
            raise worker.never_ready(lost)
        reason, unfinished = worker.loss(lost)
        # Between calls, each job may have ended it.
        for job in [worker.sent[0]] if worker.sent else list(worker.jobs):
            job.deaths += 1
            if unfinished or job.deaths == _DEATHS:
                worker.jobs.remove(job)
                self._fail(job, reason, unfinished)
        self._retire(worker)

    def _retire(self, worker: Worker) -> None:
        """End a worker, and give its jobs to others."""
        self._workers.remove(worker)
        worker.end()
        self._start_missing()
        self._assign(worker.jobs)


Handler = Callable[[Any], dict[str, Any]]


def serve(load: Callable[[dict[str, Any]], tuple[dict[str, Any], Handler]]) -> None:
    """Be the program of a worker, whose arguments are SOCKET LIFELINE.

    It communicates only through the socket. It ends when the run that started it ends, even during
    a busy loop (`child`). `load` gets the setup, and returns what to tell the run and the function
    that answers a call. Its memory and the time that it computes on a call are limited; the run
    limits the time that a call waits.
    """
    channel = Channel()
    setup = channel.receive()
    limit_memory(setup["memory_mb"])
    try:
        said, answer = load(setup)
    except UsageError as error:
        channel.send({"refused": str(error)})
        return
    channel.send({"ready": True, **said})
    while True:
        call = channel.receive()
        with cpu_deadline(setup["timeout"] * (len(call) if isinstance(call, list) else 1)):
            message = answer(call)
        channel.send(message)


def failure(
    label: str,
    error: BaseException,
    unfinished: tuple[type[BaseException], ...] = (MemoryError, RecursionError),
) -> dict[str, Any]:
    """Return the answer for a call that raised `error` in what `label` names.

    "unfinished" means that it took too much (the error is one of `unfinished`), "spent" that the
    process must not be used again.
    """
    text = "; ".join([str(error), *getattr(error, "__notes__", ())])
    return {
        "failure": printable(f"{label}: {type(error).__name__}: {text}".removesuffix(": ")),
        "unfinished": isinstance(error, unfinished),
        "spent": isinstance(error, MemoryError),
    }
