"""Clocks and memory of the device that a model is on. A GPU works on after a call has returned."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def clocked(work: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """What `work` returns, and the seconds until `device` has done it."""
    wait_for(device)
    began = time.perf_counter()
    value = work()
    wait_for(device)
    return value, time.perf_counter() - began


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget_peak(device: torch.device) -> None:
    """Let `peak_gib` tell of what is allocated from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    """The most GPU memory that tensors held since `forget_peak`; None without a GPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device) / 2**30
