"""Measure a device's rates: products, copies, disk and checksums; and its memory.

A rate is the best of several calls, because it is the most that the machine can do. What takes a
run's time is measured by the median.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch

LONGEST = 4.0  # seconds for which a rate is measured
_BLOCK = 64 * 2**20  # bytes copied, written and hashed
_SIDE = 2048  # of the matrices of a product


def rates(device: torch.device) -> dict[str, float]:
    """Return the best rates of products, copies, disk and checksums."""
    found: dict[str, float] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = (torch.randn(_SIDE, _SIDE, device=device, dtype=dtype) for _ in range(2))
        found[name] = 2.0 * _SIDE**3 / best(partial(torch.matmul, a, b), device)
    source = torch.randn(_BLOCK // 4, device=device)
    target = torch.empty_like(source)
    found["memory"] = 2.0 * _BLOCK / best(lambda: target.copy_(source), device)
    block = os.urandom(_BLOCK)
    found["checksum"] = _BLOCK / best(lambda: hashlib.sha256(block).digest(), device)
    found["disk"] = _BLOCK / best(lambda: _write(block), device)
    return {**found, "link": found["memory"], "network": 1e9}


def _write(block: bytes) -> None:
    with NamedTemporaryFile(dir=Path.cwd()) as file:
        file.write(block)
        file.flush()
        os.fsync(file.fileno())


def best(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of several calls."""
    return min(_repeated(call, device))


def typical(
    call: Callable[[], object], device: torch.device, before: Callable[[], object] = lambda: None
) -> float:
    """Return the median seconds of calls that take LONGEST together, each after one of `before`."""
    return statistics.median(_repeated(call, device, before))


def _repeated(
    call: Callable[[], object], device: torch.device, before: Callable[[], object] = lambda: None
) -> list[float]:
    """Return the seconds of one call or more that take LONGEST together."""
    taken: list[float] = []
    while not taken or sum(taken) < LONGEST:
        before()
        taken.append(_seconds(call, device))
    return taken


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def device_gib(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / 2**30
    return host_gib()


def host_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
