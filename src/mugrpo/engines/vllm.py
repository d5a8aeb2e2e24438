"""vLLM's processes: what each is told, and which GPUs or CPU cores it has. Imports no vllm."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from mugrpo.config.engines import VLLMOptions
from mugrpo.config.run import ModelOptions
from mugrpo.engines.remote import Host
from mugrpo.errors import UsageError
from mugrpo.policy import Policy


def vllm_hosts(
    policy: Policy, model: ModelOptions, options: VLLMOptions, log: Callable[[str], Path]
) -> Iterator[Host]:
    """How each of the engines is started. Raises UsageError where there are too few GPUs."""
    arguments = {
        "dtype": "float32" if model.precision == "fp32" else "bfloat16",
        "tensor_parallel_size": options.tensor_parallel,
        "max_num_seqs": options.max_num_seqs,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "enforce_eager": options.enforce_eager,
        **options.arguments,
    }
    for number in range(options.processes):
        yield Host(
            python=options.python or sys.executable,
            setup={"backend": "vllm", "arguments": arguments, "stop_ids": policy.stop_ids},
            environment=_environment(options, number),
            log=log(f"engine-{number}"),
            vocab_size=policy.vocab_size,
            reloads=False,
            exact=False,
        )


def _environment(options: VLLMOptions, number: int) -> dict[str, str]:
    """The part of the machine that engine `number` has.

    Its core runs in the process itself: killed, it is gone, and does not hang.
    """
    chosen = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TOKENIZERS_PARALLELISM": "false"}
    if torch.cuda.is_available():
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
        size = options.tensor_parallel
        if options.processes * size > len(devices):
            raise UsageError(
                f"{options.processes} engines of {size} GPUs want {options.processes * size}, and "
                f"there are {len(devices)}; lower --engine.processes or --engine.tensor_parallel"
            )
        return chosen | {"CUDA_VISIBLE_DEVICES": ",".join(devices[number * size :][:size])}
    if options.processes > 1:
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // options.processes)
        mine = cores[number * share % len(cores) :][:share]
        chosen["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, mine))
    return chosen
