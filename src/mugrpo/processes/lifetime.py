"""How the processes of a run start, stop and end with it. Nothing heavy is imported here."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from mugrpo.disk.errors import Interrupted


def passed_on(**more: str) -> dict[str, str]:
    """Return the environment variables of a process that this one starts: its own, and `more`.

    `python -m` and `-c` look for modules in the working directory first. A clone or a received run
    that its user stands in may have a folder `mugrpo` or a `pip.py`, and the variable keeps Python,
    and all that it starts in turn, from running it.
    """
    return {**os.environ, "PYTHONSAFEPATH": "1", **more}


DRIVER = "MUGRPO_DRIVER"  # environment variable: `driver_name` of the run that started the ranks
_PR_SET_PDEATHSIG = 1
_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def driver_name() -> str:
    """Return this process's id and start time, which no other process ever has."""
    return f"{os.getpid()} {began(os.getpid())}"


def end_with_driver() -> None:
    """Arrange that this process, if a run drives it, ends with that run.

    Call this before the imports of a rank, which take seconds. On Linux the kernel kills it with
    the run's thread that started it, even if it is stopped or holds the interpreter's lock. A
    thread also looks for the run.
    """
    if not (driver := os.environ.get(DRIVER)):
        return
    end_with_parent()
    threading.Thread(target=_end_with, args=[driver], daemon=True).start()


def let_segments_grow() -> None:
    """Let a rank's allocator on a GPU grow its segments, unless the user has set the allocator.

    Each micro-batch has another shape, and segments of fixed sizes leave gaps that none fits into.
    torch reads the setting when it is imported. Only ranks get it: vLLM's sleep mode refuses it.
    """
    if DRIVER in os.environ and not any(name in os.environ for name in _ALLOCATORS):
        os.environ[_ALLOCATORS[0]] = "expandable_segments:True"


def end_with_parent() -> None:
    """Arrange that the kernel, on Linux, kills this process when the one that started it ends."""
    with suppress(AttributeError, OSError):  # another system
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def began(pid: int) -> str:
    """Return when a process began, in clock ticks since boot, or "" if it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]


def _end_with(driver: str) -> None:
    pid, start = driver.split(" ")
    while began(int(pid)) == start:
        time.sleep(0.1)
    os._exit(1)


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
