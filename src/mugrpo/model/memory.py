"""Memory that is kept, and memory that ran out: how that is told, and how it ends a run."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mugrpo.disk.errors import RunStopped, UsageError

# The CPU's allocator (on Linux, on Windows), CUDA itself, its libraries, and C++ say it in a plain
# RuntimeError.
_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "STATUS_ALLOC_FAILED",
    "bad_alloc",
)

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt


def keep_freed_memory() -> None:
    """Let this process keep memory for its next use that it would give back to the system.

    glibc gives every large block back at once and gets the next one page by page, each page to be
    zeroed first: a quarter of the time of an update on a CPU. Other C libraries are left alone.
    """
    linux = sys.platform.startswith("linux")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if linux else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, -1)
        mallopt(_MMAP_MAX, 0)


def give_back_memory() -> None:
    """Let other processes have the GPU memory that this one has freed."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, on the CPU or on another device."""
    if isinstance(error, RuntimeError):
        return isinstance(error, torch.OutOfMemoryError) or any(t in str(error) for t in _TEXTS)
    return isinstance(error, MemoryError)


def failure_kind(error: BaseException) -> str | None:
    """Return how a process tells its parent of `error` (`peer.raise_failure`); None for a crash."""
    if out_of_memory(error):
        return "memory"
    kinds = {RunStopped: "stopped", UsageError: "refused"}
    return next((name for kind, name in kinds.items() if isinstance(error, kind)), None)


@contextmanager
def out_of_memory_explained(work: str, way_out: str) -> Iterator[None]:
    """Memory that runs out in the block, which does `work`, becomes one sentence."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise RunStopped(f"memory ran out in {work}; {way_out}") from error
