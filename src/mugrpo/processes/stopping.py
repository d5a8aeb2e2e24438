"""SIGTERM and Ctrl-C stop a run between units of work, so that it can save its state and resume."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mugrpo.disk.errors import Interrupted

_SECOND_SIGNAL_STATUS = 130  # what a shell reports for a process ended by Ctrl-C


class StopFlag:
    """A flag that a signal sets and the run checks between units of work."""

    def __init__(self) -> None:
        self.signal_name: str | None = None

    def check(self) -> None:
        """Raise Interrupted if a signal has asked the run to stop."""
        if self.signal_name:
            raise Interrupted(f"stopped by {self.signal_name}")


@contextmanager
def stop_on_signals(*, patient: bool = False) -> Iterator[StopFlag]:
    """Within the block, a first SIGTERM or SIGINT sets the flag and a second one exits at once.

    If `patient`, a second signal does nothing: a rank may get the same signal from several senders.
    """
    flag = StopFlag()

    def handle(number: int, _frame: FrameType | None) -> None:
        if flag.signal_name and not patient:
            os._exit(_SECOND_SIGNAL_STATUS)
        flag.signal_name = signal.Signals(number).name

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
