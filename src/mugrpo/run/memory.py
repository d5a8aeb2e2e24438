"""Whether the weights, gradients and moments of a run can fit this machine."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from mugrpo.config.cores import host_memory
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.model.hardware import device
from mugrpo.model.loading import model_config

GIB = 1 << 30


def parameters(options: ModelOptions) -> tuple[int, int]:
    """Return the numbers of a model's parameters and layers. No weight is read."""
    sizes: Any = model_config(options).get_text_config()
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(sizes, trust_remote_code=False)
    return sum(p.numel() for p in model.parameters()), int(sizes.num_hidden_layers)


def require_memory(config: RunConfig) -> None:
    """Raise UsageError if what every update needs cannot fit this machine's memory.

    On a CPU the system would kill the process without a word. Activations are not counted: an
    update that runs out of memory is computed again in smaller parts.
    """
    if config.backend.clustered:
        return  # its machines are others
    weights, _ = parameters(config.model)
    trained = 0 if config.lora.rank else weights  # an adapter is a few percent
    copy = 0 if config.model.precision == "fp32" else 2
    need = (4 + copy) * weights + 12 * trained  # fp32, a copy in bf16; gradient and two moments
    if device() == "cpu":
        share, what, room = need, "memory", host_memory()
    else:  # FSDP divides them
        room = torch.cuda.get_device_properties(0).total_memory
        share, what = need // config.distributed.processes, "memory of each GPU"
    if share > room:
        raise UsageError(
            f"weights, gradients and moments take {share / GIB:.1f} GiB of {what}, which has "
            f"{room / GIB:.1f}: use a smaller model, more --distributed.processes with a GPU each, "
            "or train an adapter (--lora.rank 16)"
        )
