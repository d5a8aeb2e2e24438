"""Linear layers in 4 bits under an adapter, by bitsandbytes (QLoRA, arXiv 2305.14314)."""

from typing import Any

import torch
from torch import nn

from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError

_BLOCK = 64  # weights that share a scale
BYTES = 0.5 + 4 / _BLOCK  # of a weight, with its share of the scale


def _library() -> Any:
    import bitsandbytes

    return bitsandbytes


class QuantizedLinear(nn.Module):
    """A linear layer with its weights in 4 bits, on the device `place`. Its bias stays."""

    def __init__(self, layer: nn.Linear, place: str) -> None:
        super().__init__()
        self.shape, self.bias = layer.weight.shape, layer.bias
        weight, how = layer.weight.data.to(place), {"blocksize": _BLOCK, "quant_type": "nf4"}
        packed, state = _library().functional.quantize_4bit(weight, **how)
        self.register_buffer("packed", packed)  # buffers move, and a copy in bf16 shares them
        self.register_buffer("scales", state.absmax)

    def forward(self, x: torch.Tensor) -> Any:
        return _library().matmul_4bit(x, self.packed, self._state(), bias=self.bias)

    def weights(self) -> Any:
        return _library().functional.dequantize_4bit(self.packed, self._state())

    def _state(self) -> Any:
        kind = _library().functional.QuantState
        return kind(self.scales, self.shape, None, _BLOCK, "nf4", torch.float32)


def quantize(model: nn.Module, lora: LoRAOptions | None, place: str, *, back: bool = False) -> None:
    """Put the linear layers under an adapter in 4 bits if `lora` says so, or raise UsageError."""
    if lora is None or not lora.quantize:
        return
    layers: Any = [m for m in model.modules() if isinstance(getattr(m, "base_layer", 0), nn.Linear)]
    if not layers:
        raise UsageError("this model has no linear layers to put in 4 bits; drop lora.quantize")
    for layer in layers:
        plain, layer.base_layer = layer.base_layer, QuantizedLinear(layer.base_layer, place)
        if back:  # to fp32, with the rounded weights
            plain.weight.data, layer.base_layer = layer.base_layer.weights(), plain
