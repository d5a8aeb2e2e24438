"""Work that runs in a thread beside the updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from typing import TypeVar

from mugrpo.disk.errors import RunStopped

_TICK = 0.2  # seconds between checks for a signal


A = TypeVar("A")
T = TypeVar("T")

Check = Callable[[], None]  # raises if the work must stop


def at_once(work: Callable[[A], T], items: Sequence[A]) -> list[T]:
    """Return what `work` returns for each of `items`, in order. Threads work on all at once.

    A single item is worked on in this thread, as torch's settings are a thread's own. Raises what
    the first failing item in order raises, when all have ended.
    """
    if len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(work, items))


class Background:
    """A thread that runs `work` until it is done, fails, or must stop.

    `work` gets a function to call now and then. The function raises if the work must stop: when
    `check` raises, or after `close`.
    """

    def __init__(self, work: Callable[[Check], None], check: Check) -> None:
        """Start the thread. `check` raises if the run must stop."""
        self._check = check
        self._abandoned = Event()
        self._pool = ThreadPoolExecutor(1, "generation")
        self._future: Future[None] = self._pool.submit(work, self._keep_on)

    def running(self) -> bool:
        """Return whether the work is unfinished. Raises the error that ended it, if any."""
        if not self._future.done():
            return True
        self._future.result()
        return False

    def failed(self) -> bool:
        """Return whether the work has ended with an error."""
        return self._future.done() and self._future.exception() is not None

    def wait(self) -> None:
        """Wait until the work is finished. Raises its error, or what `check` raises."""
        while self.running():
            self._check()
            wait([self._future], _TICK)

    def close(self) -> None:
        """Stop the work at its next check, and wait until it has ended."""
        self._abandoned.set()
        self._pool.shutdown()

    def _keep_on(self) -> None:
        self._check()
        if self._abandoned.is_set():
            raise RunStopped("the updates ended")
