"""A pool of worker processes that can be killed. Each handles one call at a time, with deadlines.

A single thread dispatches calls to idle workers, then waits until a worker answers, dies or reaches
a deadline. A killed worker is replaced at once, and the others continue while the new one loads.

There are two deadlines. The kernel limits the time that a worker computes on a call: a busy machine
does not change who reaches it. This process limits the time that a call of reward functions may
take with all its waiting. Verifiers other than "code" wait for nothing, and have only the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugrpo.config.base import WorkerOptions
from mugrpo.disk.errors import BrokenReward, RunStopped, UsageError
from mugrpo.processes.messages import printable
from mugrpo.processes.peer import TICK, PeerLost, audible
from mugrpo.processes.workers import STARTING_SECONDS, Limits, Worker

_WAITING = ("function", "code")  # rewards that may wait for something
LOOK_AHEAD = 512  # most calls held at once: waiting, in progress, or done but not yet yielded


@dataclass(eq=False)
class Call:
    """Items that are sent to a worker together, and their outcomes, None until known."""

    items: Sequence[str]  # JSON
    outcomes: list[dict[str, Any] | None]
    first: int = 0  # index of the first item's outcome
    deaths: int = 0  # workers that died while they judged these items alone

    @classmethod
    def of(cls, items: Sequence[str]) -> Call:
        return cls(items, [None] * len(items))

    @property
    def complete(self) -> bool:
        return None not in self.outcomes

    def record(self, outcomes: Sequence[dict[str, Any]]) -> None:
        self.outcomes[self.first : self.first + len(self.items)] = outcomes

    def one_by_one(self) -> list[Call]:
        """Return a call for each item, sharing this call's outcomes."""
        return [
            Call([item], self.outcomes, self.first + index) for index, item in enumerate(self.items)
        ]


class _Worker(Worker):
    """A process that judges answers."""

    call: Call | None = None

    @property
    def idle(self) -> bool:
        return self.ready and self.call is None


class Pool:
    """Workers that judge items by `rewards`, given by their options as JSON values."""

    def __init__(self, rewards: Sequence[dict[str, Any]], options: WorkerOptions) -> None:
        self._setup = {"rewards": list(rewards)}
        self._limits = Limits(options.patience, options.timeout, options.memory_mb)
        self._options = options
        self.log: Path | None = None  # where the workers' output goes; to stderr without it
        waits = options.patience > 0 and any(reward["name"] in _WAITING for reward in rewards)
        self._patience = options.patience if waits else None  # longest call in seconds
        self._starting = STARTING_SECONDS if options.patience else None
        self.said: list[str] = []  # sentences for the user, from a worker that is ready
        self._workers: list[_Worker] = []
        self._proven = False  # whether any worker has ever been ready
        self._running = False

    def run(self, calls: Iterable[Sequence[str]]) -> Iterator[list[dict[str, Any]]]:
        """Yield the outcomes of each call's items, in the order of the calls.

        An outcome is a worker's result, or {"failure": reason, "unfinished": whether time, memory
        or stack ran out}. If a call of several items fails, each item is tried alone. An item whose
        worker dies gets another one. Calls are consumed as workers become free. Raises UsageError
        if the rewards cannot be loaded (RunStopped if a worker could load them before), and
        BrokenReward if a function breaks its contract.
        """
        assert not self._running, "an earlier `run` of this pool has not ended"
        self._running = True
        self._forget_in_a_fork()
        source = iter(calls)
        in_progress: deque[Call] = deque()
        waiting: deque[Call] = deque()
        exhausted = False
        try:
            self._attend(waiting, patience=0.0)  # workers may have died since the last run
            while True:
                self._start_missing()
                while (
                    not exhausted and len(waiting) < self._idle() and len(in_progress) < LOOK_AHEAD
                ):
                    items = next(source, None)
                    if items is None:
                        exhausted = True
                    else:
                        in_progress.append(call := Call.of(items))
                        waiting.append(call)
                self._dispatch(waiting)
                while in_progress and in_progress[0].complete:
                    yield [outcome for outcome in in_progress.popleft().outcomes if outcome]
                    self._dispatch(waiting)
                if exhausted and not in_progress:
                    return
                self._attend(waiting)
        finally:
            self._running = False
            for worker in [w for w in self._workers if w.call is not None]:
                self._retire(worker)

    def start(self) -> None:
        """Start the workers and wait until one has loaded the rewards. Raises as `run` does."""
        self._forget_in_a_fork()
        self._start_missing()
        while not any(worker.ready for worker in self._workers):
            self._attend(deque())
            self._start_missing()

    def close(self) -> None:
        """End all workers."""
        while self._workers:
            self._workers.pop().end()

    def _idle(self) -> int:
        return sum(worker.idle for worker in self._workers)

    def _forget_in_a_fork(self) -> None:
        """In a fork, forget the workers: they belong to the process that started them."""
        self._workers = [worker for worker in self._workers if worker.ours]

    def _start_missing(self) -> None:
        while len(self._workers) < self._options.processes:
            worker = _Worker(
                "mugrpo.rewards.worker",
                self._setup,
                self._limits,
                kind="reward worker",
                starting=self._starting,
                log=self.log,
            )
            self._workers.append(worker)

    def _dispatch(self, waiting: deque[Call]) -> None:
        for worker in [w for w in self._workers if w.idle]:
            if not waiting:
                return
            worker.call = waiting.popleft()
            worker.silence = self._patience
            try:
                worker.send(f"[{','.join(worker.call.items)}]")
            except PeerLost as lost:
                self._lose(worker, lost, waiting)

    def _attend(self, waiting: deque[Call], patience: float = TICK) -> None:
        """Wait until workers answer, end or reach their deadlines, and handle each of these events.

        Wait for at most `patience` seconds.
        """
        for worker in audible(self._workers, patience):
            try:
                message = worker.hear(0.0)
                if message is not None and not _is_answer(message, worker.call):
                    raise PeerLost("sent another form of answer", worker.end())
            except PeerLost as lost:
                self._lose(worker, lost, waiting)
            else:
                if message is not None:
                    self._take(worker, message, waiting)

    def _take(self, worker: _Worker, message: dict[str, Any], waiting: deque[Call]) -> None:
        call, worker.call = worker.call, None
        worker.silence = None
        if "refused" in message:
            self.close()
            raise (RunStopped if self._proven else UsageError)(message["refused"])
        elif "broken" in message:
            raise BrokenReward(f"{message['broken']}; fix it (--force accepts the changed reward)")
        elif "ready" in message:
            worker.ready = self._proven = True
            self.said = message.get("said", self.said)
        else:
            assert call is not None, "a worker answered without a call"
            if message.get("spent"):
                self._retire(worker)
            if "results" in message:
                call.record(message["results"])
            else:
                self._fail(call, message["failure"], message["unfinished"], waiting)

    def _lose(self, worker: _Worker, lost: PeerLost, waiting: deque[Call]) -> None:
        """Handle a worker that died or reached a deadline."""
        self._retire(worker)
        call = worker.call
        if call is not None and (taken := worker.loss(lost)):
            self._fail(call, *taken, waiting)
        elif call is not None:
            call.deaths += len(call.items) == 1
            if call.deaths == 1:  # perhaps not because of the item: it gets a second worker
                waiting.appendleft(call)
            else:
                self._fail(call, f"the worker died ({lost.ended})", False, waiting)
        elif not worker.ready:
            self.close()
            raise worker.never_ready(lost, self._proven)

    def _fail(self, call: Call, reason: str, unfinished: bool, waiting: deque[Call]) -> None:
        if len(call.items) > 1:
            waiting.extendleft(reversed(call.one_by_one()))
        else:
            call.record([{"failure": printable(reason), "unfinished": unfinished}])

    def _retire(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.end()


def _is_answer(message: Any, call: Call | None) -> bool:
    """Return whether a message has the form of a worker's. A reward could send others."""
    if not isinstance(message, dict):
        return False
    if message.keys() & {"refused", "broken", "ready"}:
        return True
    if "results" not in message:
        return call is not None and message.keys() >= {"failure", "unfinished"}
    results = message["results"]
    return (
        call is not None
        and isinstance(results, list)
        and len(results) == len(call.items)
        and all(isinstance(r, dict) and _is_table(r, "values", "extra") for r in results)
    )


def _is_table(result: dict[str, Any], *names: str) -> bool:
    return all(isinstance(result.get(name), dict) for name in names)
