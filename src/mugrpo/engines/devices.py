"""The share of this machine, GPUs or CPU cores, that each engine process gets."""

from __future__ import annotations

import os

import torch

from mugrpo.config.cores import cores
from mugrpo.disk.errors import UsageError


def visible_gpus() -> list[str]:
    """Return the names, as in CUDA_VISIBLE_DEVICES, of the GPUs that this process may use."""
    if not torch.cuda.is_available():
        return []
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names.split(",") if names else [str(i) for i in range(torch.cuda.device_count())]


def own_part(number: int, reserved: int) -> dict[str, str]:
    """Return the environment that gives process `number` of our own engine its GPU.

    The first `reserved` GPUs are used last. Processes may share a GPU. Without GPUs, the
    environment is empty.
    """
    gpus = visible_gpus()
    return {"CUDA_VISIBLE_DEVICES": gpus[(reserved + number) % len(gpus)]} if gpus else {}


def exclusive_part(number: int, processes: int, size: int, reserved: int) -> dict[str, str]:
    """Return the environment that gives vLLM's process `number` its `size` GPUs.

    The first `reserved` GPUs are skipped. Without GPUs, each process gets a share of the CPU
    cores. Raises UsageError if there are too few GPUs for all processes.
    """
    if gpus := visible_gpus():
        if reserved + processes * size > len(gpus):
            updates = f", plus {reserved} for the updates," if reserved else ""
            raise UsageError(
                f"the engines need {processes} x {size} GPUs{updates} but there are {len(gpus)}; "
                "lower --engine.processes or --engine.tensor_parallel"
            )
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[reserved + number * size :][:size])}
    if processes == 1:
        return {}
    usable = cores()
    share = max(1, len(usable) // processes)
    mine = usable[number * share % len(usable) :][:share]
    return {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, mine))}
