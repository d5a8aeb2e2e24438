"""SIGTERM and Ctrl-C: finish or drop the current unit of work, save, say how to resume."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mugrpo.disk.errors import Interrupted

_SECOND_SIGNAL_STATUS = 130  # what a shell reports for a process ended by Ctrl-C


class StopFlag:
    """Set by a signal, read between units of work."""

    def __init__(self) -> None:
        self.signal_name: str | None = None

    def check(self) -> None:
        """Raise Interrupted if a signal has asked the run to stop."""
        if self.signal_name:
            raise Interrupted(f"stopped by {self.signal_name}")


@contextmanager
def stop_on_signals(*, patient: bool = False) -> Iterator[StopFlag]:
    """Within the block the first SIGTERM or SIGINT sets the flag, a second one quits at once.

    Not where it is `patient`: a rank may be sent the same signal by several.
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
