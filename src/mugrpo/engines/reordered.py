"""Linear layers whose weights lie as the processor's matrix kernels want them.

A step of decoding has few rows: reading and rearranging weights then takes as long as multiplying.
oneDNN, which comes with PyTorch, multiplies with weights that were rearranged once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from mugrpo.model.policy import Policy


@contextmanager
def reordered(policy: Policy, rows: int) -> Iterator[None]:
    """Let the policy's linear layers use reordered copies of their weights, for some `rows` a call.

    The copies take as much memory as the weights. They are made for fp32 on a CPU and not of
    anything else, which is left as it is; the weights may not change meanwhile.
    """
    layers = _reorderable(policy)
    for layer in layers:
        weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        layer.forward = partial(_linear, weight, layer.bias)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _linear(weight: torch.Tensor, bias: torch.Tensor | None, input: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return made


def _reorderable(policy: Policy) -> list[nn.Linear]:
    ready = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not ready or policy.precision != "fp32" or policy.device.type != "cpu":
        return []
    return [layer for layer in policy.model.modules() if type(layer) is nn.Linear]
