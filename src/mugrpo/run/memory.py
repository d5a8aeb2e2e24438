"""Whether a run fits the memory of this machine: arithmetic on the model's sizes.

A GPU that runs out of memory raises an error, and the micro-batch is computed again in halves. The
host's memory has no such error: the system kills the process. So on a CPU everything must fit, and
on a GPU weights, gradients and moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from mugrpo.config.engines import OwnEngineOptions
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.model.hardware import device, host_memory
from mugrpo.model.loading import model_config
from mugrpo.optimize.forward import LOGPROB_CHUNK

GIB = 1 << 30


@dataclass(frozen=True)
class Need:
    """Bytes that all processes of a run take together at their peak."""

    states: float  # fp32 weights, their copy in bf16, gradients, and AdamW's two moments
    micro_batch: float  # what the backward pass keeps, and the logits
    cache: float  # keys and values of the engine's slots, and their logits
    others: float  # models of engines in processes of their own, a checkpoint being written

    @property
    def peak(self) -> float:
        """Return the sum, in which engines and updates take turns."""
        return self.states + self.others + max(self.micro_batch, self.cache)


def need_of(config: RunConfig) -> Need:
    """Return what the run needs, all in fp32 but for the weights' copy."""
    sizes: Any = model_config(config.model).get_text_config()
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(sizes, trust_remote_code=False)
    weights = sum(p.numel() for p in model.parameters())
    trained = 0 if config.lora.rank else weights  # an adapter is a few percent
    copy = 0 if config.model.precision == "fp32" else 2
    ranks, tokens = config.distributed.processes, config.optimizer.micro_batch_tokens
    layers, hidden = sizes.num_hidden_layers, sizes.hidden_size
    inner = getattr(sizes, "intermediate_size", None) or 4 * hidden
    # A layer keeps, per token, gate, its activation, up and their product, and 12 hidden ones: 0.99
    # to 1.2 times what autograd saves in layers of Qwen2.5, Qwen3 and Llama.
    layer = 4 * (4 * inner + 12 * hidden)
    kept = layer + layers * 4 * hidden if config.model.gradient_checkpointing else layers * layer
    logits = 12 * sizes.vocab_size * min(LOGPROB_CHUNK, tokens)  # also their softmax, gradient
    cache = others = 0.0
    if isinstance(engine := config.engine, OwnEngineOptions):
        heads = getattr(sizes, "num_attention_heads", None) or 1  # some models have no attention
        keys = getattr(sizes, "num_key_value_heads", None) or heads
        of_token = 8 * layers * keys * (getattr(sizes, "head_dim", None) or hidden // heads)
        of_slot = config.rollouts.max_new_tokens * of_token + 16 * sizes.vocab_size
        cache = max(1, engine.processes) * engine.slots * of_slot
        others += engine.processes * (4 + copy) * weights
    others += 12 * trained  # the copy that a checkpoint is written from
    states = (4 + copy) * weights + 12 * trained  # FSDP divides them
    return Need(states, ranks * (tokens * kept + logits), cache, others)


def require_memory(config: RunConfig) -> None:
    """Raise UsageError if the run cannot fit the memory of this machine."""
    if config.backend.clustered:
        return  # its machines are others
    need = need_of(config)
    if device() == "cpu":
        if need.peak > host_memory():
            raise UsageError(
                f"the run takes {need.peak / GIB:.1f} GiB of memory (weights, gradients and "
                f"moments {need.states / GIB:.1f}, a micro-batch {need.micro_batch / GIB:.1f}, the "
                f"engine's cache {need.cache / GIB:.1f}), but this machine has "
                f"{host_memory() / GIB:.1f}: lower --optimizer.micro_batch_tokens (now "
                f"{config.optimizer.micro_batch_tokens}), {config.engine.memory_remedy}, use a "
                "smaller model, or train an adapter (--lora.rank 16)"
            )
        return
    total = torch.cuda.get_device_properties(0).total_memory
    share = need.states / config.distributed.processes
    if share > total:
        raise UsageError(
            f"weights, gradients and moments take {share / GIB:.1f} GiB of each GPU, which has "
            f"{total / GIB:.1f}: use more --distributed.processes, or train an adapter "
            "(--lora.rank 16)"
        )
