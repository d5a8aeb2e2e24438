"""Keep or return freed memory; recognize and report out-of-memory errors."""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from mugrpo.config.cores import host_memory
from mugrpo.disk.errors import RunStopped, UsageError

# A plain RuntimeError with one of these texts means that memory ran out. They come from the CPU's
# allocator (on Linux, on Windows), CUDA itself, its libraries, and C++.
_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "STATUS_ALLOC_FAILED",
    "bad_alloc",
)

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of glibc's mallopt


def keep_freed_memory() -> None:
    """Make this process keep freed memory for reuse instead of returning it to the system.

    glibc returns every large block at once and gets the next one page by page, each page zeroed
    first. That takes a quarter of the time of an update on a CPU. Other C libraries are left as
    they are.
    """
    linux = sys.platform.startswith("linux")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if linux else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, -1)
        mallopt(_MMAP_MAX, 0)


def give_back_memory() -> None:
    """Collect garbage, and leave freed GPU memory to other processes."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def make_room() -> None:
    """Leave freed memory to what is done next: generation and updates free blocks of other sizes.

    On a GPU, that takes a quarter of a second. On a CPU, `keep_freed_memory` keeps them, and a
    process gives them back to the system only if it holds half of the machine's memory, because
    getting pages again takes time.
    """
    if torch.cuda.is_available():
        give_back_memory()
        return
    linux = sys.platform.startswith("linux")
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if linux else None
    if trim is not None and _resident() > host_memory() / 2:
        gc.collect()
        trim(0)


def _resident() -> int:
    """Return the bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that memory ran out, on the CPU or on another device."""
    if isinstance(error, RuntimeError):
        return isinstance(error, torch.OutOfMemoryError) or any(t in str(error) for t in _TEXTS)
    return isinstance(error, MemoryError)


def failure_kind(error: BaseException) -> str | None:
    """Return the kind of failure to report for `error`, or None for a crash.

    The kinds are those of `peer.raise_failure`.
    """
    if out_of_memory(error):
        return "memory"
    kinds = {RunStopped: "stopped", UsageError: "refused"}
    return next((name for kind, name in kinds.items() if isinstance(error, kind)), None)


@contextmanager
def out_of_memory_explained(work: str, remedy: str) -> Iterator[None]:
    """Raise RunStopped, naming `work` and `remedy`, if memory runs out in the block."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise RunStopped(f"memory ran out in {work}; {remedy}") from error
