"""Which part of this machine a process of an engine has."""

from __future__ import annotations

import os

import torch

from mugrpo.disk.errors import UsageError


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def own_part(number: int, taken: int) -> dict[str, str]:
    """The GPU of process `number` of an engine of our own, after the first `taken`; processes may
    share one."""
    gpus = visible_gpus()
    return {"CUDA_VISIBLE_DEVICES": gpus[(taken + number) % len(gpus)]} if gpus else {}


def exclusive_part(number: int, processes: int, size: int, taken: int) -> dict[str, str]:
    """The `size` GPUs of vLLM's process `number`, after the first `taken`, or its share of CPU
    cores where there are none.

    Raises UsageError where the GPUs do not suffice for all processes.
    """
    if gpus := visible_gpus():
        if taken + processes * size > len(gpus):
            updates = f", beside the {taken} of the updates," if taken else ""
            raise UsageError(
                f"{processes} engines of {size} GPUs want {processes * size}{updates} and there "
                f"are {len(gpus)}; lower --engine.processes or --engine.tensor_parallel"
            )
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[taken + number * size :][:size])}
    if processes == 1:
        return {}
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // processes)
    mine = cores[number * share % len(cores) :][:share]
    return {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, mine))}
