"""The setup of vLLM processes. Does not import vllm."""

from __future__ import annotations

from pathlib import Path

import torch

from mugrpo.config.engines import VLLMOptions
from mugrpo.config.run import ModelOptions
from mugrpo.engines.process import Host
from mugrpo.model.vocabulary import Vocabulary


def vllm_host(vocabulary: Vocabulary, model: ModelOptions, options: VLLMOptions, log: Path) -> Host:
    """Return the host of one vLLM process.

    vLLM's engine core runs in that same process, so nothing is left to hang when it is killed.
    """
    arguments = {
        "dtype": "float32" if model.precision == "fp32" else "bfloat16",
        "tensor_parallel_size": options.tensor_parallel,
        "max_num_seqs": options.max_num_seqs,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "enforce_eager": options.enforce_eager,
        # The CPU build (0.32) crashes on a seeded request whose prompt is split into chunks.
        **({} if torch.cuda.is_available() else {"enable_chunked_prefill": False}),
        **options.arguments,
    }
    return Host(
        python=options.python,
        setup={"backend": "vllm", "arguments": arguments, "stop_ids": vocabulary.stop_ids},
        environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TOKENIZERS_PARALLELISM": "false"},
        log=log,
        vocab_size=vocabulary.size,
        reloads=False,
        exact=False,
        silence=options.silence,
        gpus=options.tensor_parallel,
    )
