"""A pool of worker processes that can be killed: one call at a time each, with a deadline.

One thread runs it all: what is ready is dispatched, then it waits for whichever worker answers
first or reaches its deadline. A worker that is killed is replaced at once, and the others go on
while its successor loads.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mugrpo.config.rewards import WorkerOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.processes.ending import kill_with_all
from mugrpo.processes.messages import Inbox, printable, send, to_json

STARTING_SECONDS = 120.0  # for the imports of reward functions, which may be torch
LOOK_AHEAD = 512  # calls under way or waiting for an earlier one's answer


@dataclass(eq=False)
class Call:
    """Items that go to a worker together, and what came of each, None until it is known."""

    items: Sequence[str]  # JSON
    outcomes: list[dict[str, Any] | None]
    first: int = 0  # of the items here, among the outcomes

    @classmethod
    def of(cls, items: Sequence[str]) -> Call:
        return cls(items, [None] * len(items))

    @property
    def complete(self) -> bool:
        return None not in self.outcomes

    def enter(self, outcomes: Sequence[dict[str, Any]]) -> None:
        self.outcomes[self.first : self.first + len(self.items)] = outcomes

    def one_by_one(self) -> list[Call]:
        return [
            Call([item], self.outcomes, self.first + index) for index, item in enumerate(self.items)
        ]


@dataclass(eq=False)
class Worker:
    """A process at the other end of a channel."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    deadline: float = field(default_factory=lambda: time.monotonic() + STARTING_SECONDS)
    inbox: Inbox = field(default_factory=Inbox)
    ready: bool = False
    call: Call | None = None

    @property
    def idle(self) -> bool:
        return self.ready and self.call is None

    @property
    def dead(self) -> bool:
        """Whether it ended since it was last heard."""
        self.channel.setblocking(False)
        try:
            return not self.channel.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def end(self) -> str:
        """Kill it with all that it started; says how it had ended where it was dead already."""
        self.channel.close()
        return kill_with_all(self.process)


class Pool:
    """Workers that judge items by `rewards` (their options as JSON would have them)."""

    def __init__(self, rewards: Sequence[dict[str, Any]], options: WorkerOptions) -> None:
        self._setup = to_json({"rewards": rewards, "memory_mb": options.memory_mb})
        self._options = options
        self._workers: list[Worker] = []
        self._process = os.getpid()
        self._proven = False  # whether a worker was ever ready
        self._running = False
        self._at_exit = weakref.finalize(self, _end_all, self._workers, self._process)

    def run(self, calls: Iterable[Sequence[str]]) -> Iterator[list[dict[str, Any]]]:
        """What came of each call's items, in the order of the calls.

        That is a worker's result, or {"failure": reason, "timeout": bool}. Where a call of several
        items fails, each item is tried alone. Calls are taken as workers come free. Raises
        UsageError where the rewards cannot be loaded, RunStopped for a broken contract.
        """
        assert not self._running, "the answers of one call of scores are still being read"
        self._running = True
        self._forget_another_process()
        for worker in [worker for worker in self._workers if worker.idle and worker.dead]:
            self._retire(worker)
        source = iter(calls)
        under_way: deque[Call] = deque()
        waiting: deque[Call] = deque()
        exhausted = False
        try:
            while True:
                self._start_missing()
                while not exhausted and len(waiting) < self._idle() and len(under_way) < LOOK_AHEAD:
                    items = next(source, None)
                    if items is None:
                        exhausted = True
                    else:
                        under_way.append(call := Call.of(items))
                        waiting.append(call)
                self._dispatch(waiting)
                while under_way and under_way[0].complete:
                    yield [outcome for outcome in under_way.popleft().outcomes if outcome]
                    self._dispatch(waiting)
                if exhausted and not under_way:
                    return
                self._attend(waiting)
        finally:
            self._running = False
            for worker in [w for w in self._workers if w.call is not None]:
                self._retire(worker)

    def start(self) -> None:
        """Start the workers and wait until one has loaded the rewards, or raise as `run` does."""
        self._forget_another_process()
        self._start_missing()
        while not any(worker.ready for worker in self._workers):
            self._attend(deque())
            self._start_missing()

    def close(self) -> None:
        """End every worker."""
        _end_all(self._workers, self._process)

    def _idle(self) -> int:
        return sum(worker.idle for worker in self._workers)

    def _forget_another_process(self) -> None:
        """In a fork of the process that started the workers: they are that one's."""
        if self._process != os.getpid():
            for worker in self._workers:
                worker.channel.close()
            self._workers.clear()
            self._process = os.getpid()
            self._at_exit.detach()
            self._at_exit = weakref.finalize(self, _end_all, self._workers, self._process)

    def _start_missing(self) -> None:
        while len(self._workers) < self._options.processes:
            self._workers.append(_start(self._setup))

    def _dispatch(self, waiting: deque[Call]) -> None:
        for worker in [w for w in self._workers if w.idle]:
            if not waiting:
                return
            worker.call = waiting.popleft()
            worker.deadline = time.monotonic() + self._options.timeout
            worker.channel.settimeout(self._options.timeout)
            with suppress(OSError):  # it is dead, or does not read: attending to it tells which
                send(worker.channel, f"[{','.join(worker.call.items)}]")

    def _attend(self, waiting: deque[Call]) -> None:
        """Wait for answers and deadlines, and enter what came of them."""
        busy = [worker for worker in self._workers if not worker.idle]
        assert busy, "nothing to wait for"
        until = min(worker.deadline for worker in busy)
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.channel, selectors.EVENT_READ, worker)
            heard = selector.select(max(0.0, until - time.monotonic()))
        for worker in [key.data for key, _ in heard]:
            self._hear(worker, waiting)
        now = time.monotonic()
        for worker in [w for w in self._workers if not w.idle and w.deadline <= now]:
            self._too_late(worker, waiting)

    def _hear(self, worker: Worker, waiting: deque[Call]) -> None:
        try:
            open_ = worker.inbox.read(worker.channel)
            message = worker.inbox.message()
        except (OSError, ValueError):
            open_, message = False, None
        if message is not None:
            self._take(worker, message, waiting)
        elif not open_:
            call, ended = worker.call, self._retire(worker)
            if call is not None:
                self._fail(call, f"the worker died ({ended})", waiting)
            elif not worker.ready:
                self._stop(f"a reward worker died while it was loading ({ended})")

    def _take(self, worker: Worker, message: dict[str, Any], waiting: deque[Call]) -> None:
        call, worker.call = worker.call, None
        if "refused" in message:
            self._stop(message["refused"])
        elif "broken" in message:
            raise RunStopped(f"{message['broken']}; mend it, and resume with --force besides")
        elif "ready" in message:
            worker.ready = self._proven = True
        else:
            assert call is not None, "an answer that nobody asked for"
            if message.get("spent"):
                self._retire(worker)
            if "results" in message:
                call.enter(message["results"])
            else:
                self._fail(call, message["failure"], waiting)

    def _too_late(self, worker: Worker, waiting: deque[Call]) -> None:
        call = worker.call
        self._retire(worker)
        if call is None:
            self._stop(f"a reward worker was not ready after {STARTING_SECONDS:g} seconds")
        else:
            reason = f"not done {self._options.timeout:g} seconds after its dispatch"
            self._fail(call, reason, waiting, timeout=True)

    def _fail(
        self, call: Call, reason: str, waiting: deque[Call], *, timeout: bool = False
    ) -> None:
        if len(call.items) > 1:
            waiting.extendleft(reversed(call.one_by_one()))
        else:
            call.enter([{"failure": printable(reason), "timeout": timeout}])

    def _stop(self, why: str) -> None:
        self.close()
        raise RunStopped(why) if self._proven else UsageError(why)

    def _retire(self, worker: Worker) -> str:
        self._workers.remove(worker)
        return worker.end()


def _start(setup: str) -> Worker:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", "mugrpo.rewards.worker"]
        process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what rewards print is no answer
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={"OMP_NUM_THREADS": "1", **os.environ},
        )
    worker = Worker(process, ours)
    with suppress(OSError):  # it died at once, which its end of the channel will tell
        send(ours, setup)
    return worker


def _end_all(workers: list[Worker], process: int) -> None:
    """End `workers`, unless this is a fork of the process that they belong to."""
    if process == os.getpid():
        while workers:
            workers.pop().end()
