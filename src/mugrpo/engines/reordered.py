"""Linear layers whose weights are stored in the memory layout of the CPU's matrix kernels.

A decoding step multiplies few rows, so reading and reordering the weights takes as long as the
multiplication. oneDNN, which PyTorch includes, can multiply with weights that were reordered once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn


@contextmanager
def reordered(model: Any, rows: int) -> Iterator[None]:
    """Within the block, let linear layers of `model` use reordered copies of their weights.

    `rows` is the expected number of rows per call. The copies take as much memory as the weights.
    Only a model on a CPU is changed. The weights must not change within the block.
    """
    layers = _reorderable(model)
    for layer in layers:
        weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        layer.forward = partial(_linear, weight, layer.bias)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _linear(weight: torch.Tensor, bias: torch.Tensor | None, input: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return output


def _reorderable(model: Any) -> list[nn.Linear]:
    ready = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not ready or model.device.type != "cpu":
        return []
    # Older CPUs multiply in bf16, but not in this layout.
    half = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
    return [layer for layer in layers if half or layer.weight.dtype != torch.bfloat16]
