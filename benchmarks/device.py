"""Time and memory of work on a device. A GPU is still working when a call returns."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def clocked(work: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """Return what `work` returns, and the seconds until `device` has finished it."""
    wait_for(device)
    began = time.perf_counter()
    value = work()
    wait_for(device)
    return value, time.perf_counter() - began


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget_peak(device: torch.device) -> None:
    """Reset the peak that `peak_gib` returns."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    """Return the peak GPU memory of tensors since `forget_peak`, or None without a GPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device) / 2**30
