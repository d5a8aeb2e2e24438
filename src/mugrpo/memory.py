"""Memory that ran out: how it is told from other errors, and how it ends a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mugrpo.errors import RunStopped

# The CPU's allocator (on Linux, on Windows), CUDA itself, its libraries, and C++ say it in a plain
# RuntimeError.
_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "STATUS_ALLOC_FAILED",
    "bad_alloc",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, on the CPU or on another device."""
    if isinstance(error, RuntimeError):
        return isinstance(error, torch.OutOfMemoryError) or any(t in str(error) for t in _TEXTS)
    return isinstance(error, MemoryError)


@contextmanager
def out_of_memory_explained(work: str, way_out: str) -> Iterator[None]:
    """Memory that runs out in the block, which does `work`, becomes one sentence."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise RunStopped(f"memory ran out in {work}; {way_out}") from error
