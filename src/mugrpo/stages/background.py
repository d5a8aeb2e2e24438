"""Work in a thread beside the updates."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event

from mugrpo.disk.errors import RunStopped

_TICK = 0.2  # seconds between looks at a signal


Check = Callable[[], None]  # raises if the work is to stop


class Background:
    """A thread that does `work`, which calls `keep_on` now and then."""

    def __init__(self, work: Callable[[Check], None], check: Check) -> None:
        """`check` raises if the run is to stop."""
        self._check = check
        self._abandoned = Event()
        self._pool = ThreadPoolExecutor(1, "generation")
        self._done: Future[None] = self._pool.submit(work, self._keep_on)

    def running(self) -> bool:
        """Return whether the work goes on. Raises what has stopped it."""
        if not self._done.done():
            return True
        self._done.result()
        return False

    def failed(self) -> bool:
        """Return whether the work has ended with an error."""
        return self._done.done() and self._done.exception() is not None

    def wait(self) -> None:
        """Wait until the work is done. Raises what has stopped it, or the run."""
        while self.running():
            self._check()
            wait([self._done], _TICK)

    def close(self) -> None:
        """Let the work end where it is, and wait until it has."""
        self._abandoned.set()
        self._pool.shutdown()

    def _keep_on(self) -> None:
        self._check()
        if self._abandoned.is_set():
            raise RunStopped("the updates ended")
