"""Ranks end with the run that drives them, however it ends. Nothing heavy is imported here."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

DRIVER = "MUGRPO_DRIVER"  # environment variable: `driver_name` of the run that started the ranks
_PR_SET_PDEATHSIG = 1
_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def driver_name() -> str:
    """Return this process's id and start time, which no other process ever has."""
    return f"{os.getpid()} {began(os.getpid())}"


def end_with_driver() -> None:
    """Arrange that this process, if a run drives it, ends with that run.

    Call this before the imports of a rank, which take seconds. On Linux the kernel kills it when
    torchrun ends, even if it is stopped or holds the interpreter's lock, and torchrun ends with the
    run (`torchrun`). A thread also looks for the run.
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
    rank = DRIVER in os.environ or os.environ.get("WORLD_SIZE", "1") != "1"
    if rank and not any(name in os.environ for name in _ALLOCATORS):
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
