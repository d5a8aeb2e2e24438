"""A model with linear layers in 4 bits, for an adapter to be trained on top (QLoRA).

bitsandbytes keeps each weight as one of the 16 values of nf4, and for each 64 of them the largest
absolute value in fp32. A layer multiplies by the weights that these stand for, in the precision of
the run. The embeddings, the norms and the output head stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig
from transformers.pytorch_utils import Conv1D

from mugrpo.config.lora import LoRAOptions
from mugrpo.disk.errors import UsageError

_BLOCK = 64  # weights that share a largest value
BYTES = 0.5 + 4 / _BLOCK  # of a weight, with its share of that value
DEVICES = ("cuda",)  # bitsandbytes has kernels for CPUs as well, but they are slower than fp32


def quantization_of(lora: LoRAOptions, precision: str, device: str) -> dict[str, Any] | None:
    """Return how `from_pretrained` quantizes the model under an adapter, or None if it does not.

    Raises UsageError if `device` is not a GPU, and as `require_bitsandbytes` does.
    """
    if not lora.quantized:
        return None
    if device not in DEVICES:
        raise UsageError(
            f"lora.quantization = {lora.quantization!r} needs a GPU, but the model runs on the "
            f"{device.upper()}; use --lora.quantization none there"
        )
    require_bitsandbytes()
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=lora.quantization,
        bnb_4bit_compute_dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
    )
    return {"quantization_config": config, "device_map": {"": device}}


def require_bitsandbytes() -> None:
    """Raise UsageError if bitsandbytes, or what transformers loads it with, is missing."""
    try:
        import accelerate  # noqa: F401
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"lora.quantization needs bitsandbytes ({error}): pip install 'mugrpo[qlora]'"
        ) from None


def packed_weights(model: Any) -> int:
    """Return the number of weights of `model`, with an adapter inside, that are put in 4 bits."""
    head = model.get_output_embeddings()
    layers = (m for m in model.modules() if isinstance(m, nn.Linear | Conv1D) and m is not head)
    return sum(m.weight.numel() for m in layers if not m.weight.requires_grad)
