"""Host memory for copies of tensors on a GPU, which is pinned once and used again.

A GPU copies to memory that is not pinned through a small buffer of the driver's, at 1.6 GB/s on an
H100. Pinning took as long, at 1.0 GB/s, for torch's own pinned tensors, each of which it rounds up
to a power of two. So all tensors of a copy share one block, which stays.
"""

import os
import re
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from mugrpo.config.cores import host_memory

_MOST = 2  # blocks: what sleeps, while a checkpoint is still written from where it slept before
_ALIGNED = 512  # bytes
_PAGE = 4096


class HostMemory:
    """Blocks of pinned host memory, each for a copy of many tensors.

    They are two at most, and of the machine's memory a quarter, divided by its ranks. A block is
    used again when no tensor in it is left, so nothing that a thread still writes to disk is
    overwritten. If none is free, or without a GPU, a copy gets ordinary memory.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def rooms(self, sizes: Iterable[int]) -> "Rooms":
        """Return rooms for tensors of so many bytes, which are to be filled at once."""
        size = sum(map(_aligned, sizes))
        more = size + size // 64  # what sleeps has buffers that are not saved
        if not (size and torch.cuda.is_available()):
            return Rooms(None)
        free = [block for block in self._blocks if block.free()]
        block = next((block for block in free if len(block.memory) >= size), None)
        used = [block for block in self._blocks if block not in free]
        if block is None and len(used) < _MOST:
            taken = sum(len(block.memory) for block in used)
            if taken + more <= host_memory() / ranks_here() / 4:
                self._blocks = [*used, block := _Block(more)]  # the free ones are too small
        return Rooms(block)


def ranks_here() -> int:
    """Return how many ranks this machine has, with this one: all of the run's if nobody says."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    said = map(os.environ.get, ("LOCAL_WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE"))
    first = re.match(r"\d+", next(filter(None, said), ""))  # 4(x2), say: 4 on each of 2 machines
    return min(dist.get_world_size(), int(first[0])) if first else dist.get_world_size()


class _Block:
    """A block of pinned memory."""

    def __init__(self, size: int) -> None:
        whole = np.empty(size + _PAGE, np.uint8)  # numpy asks for huge pages
        start = -whole.ctypes.data % _PAGE
        self.memory = whole[start : start + size]
        pin(self.memory, whole)
        self.pieces: list[weakref.ref[NDArray[np.uint8]]] = []

    def free(self) -> bool:
        return all(piece() is None for piece in self.pieces)


class Rooms:
    """Memory for the tensors of one copy, one after the other."""

    def __init__(self, block: _Block | None) -> None:
        self._block, self._next = block, 0
        if block is not None:
            block.pieces.clear()

    def __call__(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return memory for `tensor`, which has another type there if `dtype` is given."""
        dtype, block = dtype or tensor.dtype, self._block
        end = self._next + tensor.numel() * dtype.itemsize
        if block is None or end > len(block.memory):
            return torch.empty(tensor.shape, dtype=dtype)
        # Not a view of one tensor: transformers would take tensors of one storage for tied ones.
        piece = block.memory[self._next : end]
        block.pieces.append(weakref.ref(piece))  # the tensor's storage keeps it
        self._next = _aligned(end)
        return torch.from_numpy(piece).view(dtype).view(tensor.shape)


def pin(memory: NDArray[np.uint8], owner: NDArray[np.uint8]) -> None:
    """Pin memory until its `owner` is gone. If CUDA refuses, copies take longer."""
    torch.from_numpy(memory).zero_()  # cores fetch pages side by side, the driver one by one
    runtime: Any = torch.cuda.cudart()
    if int(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0:
        ending = weakref.finalize(owner, runtime.cudaHostUnregister, memory.ctypes.data)
        ending.atexit = False  # CUDA may have ended before
    else:
        with suppress(RuntimeError):  # the next kernel would report it
            torch.zeros(1, device="cuda")


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
