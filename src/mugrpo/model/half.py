"""A copy of a model in bf16, which forward and backward passes use in place of fp32 weights.

The weights that are trained stay in fp32. bf16 keeps 8 bits, and most updates are too small to
change the last of them (Micikevicius et al., arXiv 1710.03740, section 3.1).

Training begins with weights that bf16 can hold. In a checkpoint in fp16, one weight in eight lies
halfway between two numbers of bf16. Its copy would move from one to the other, as the first update
points, however small that update is.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


@torch.no_grad()
def begin_in_bf16(model: nn.Module) -> None:
    """Round the trained weights of `model` to bf16. A copy of it computes what it did before."""
    for weight in model.parameters():
        if weight.requires_grad:
            weight.copy_(weight.bfloat16())


class HalfCopy:
    """A copy of `model` whose floating-point weights are in bf16, in `working`.

    `renew` rounds the model's weights of now into the copy. A backward pass through the copy adds
    its gradients, in fp32, to those of the model. Other tensors, such as buffers and weights in 4
    bits, are shared.
    """

    @torch.inference_mode(False)  # an engine may be the first to ask for it
    def __init__(self, model: nn.Module) -> None:
        # By id: what the copy shares, or has instead. They share the config, so that `attending`
        # changes the attention of both.
        known: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
        for module in model.modules():
            if (config := getattr(module, "config", None)) is not None:
                known[id(config)] = config
        pairs = []
        for weight in model.parameters():
            if not weight.is_floating_point():
                known[id(weight)] = weight
                continue
            half = nn.Parameter(weight.detach().bfloat16(), weight.requires_grad)
            known[id(weight)] = half
            pairs.append((weight, half))
            if weight.requires_grad:
                half.register_post_accumulate_grad_hook(_Giving(weight))
        self.working: Any = copy.deepcopy(model, known)
        self._weights, self._halves = zip(*pairs, strict=True)

    @torch.no_grad()
    def renew(self) -> None:
        """Round the model's weights of now into the copy."""
        torch._foreach_copy_(self._halves, self._weights)


class _Giving:
    """Adds the gradient of a weight's copy to the gradient of the weight."""

    def __init__(self, weight: nn.Parameter) -> None:
        self._weight = weight

    def __call__(self, half: torch.Tensor) -> None:
        assert half.grad is not None
        if self._weight.grad is None:
            self._weight.grad = half.grad.to(self._weight.dtype)
        else:
            self._weight.grad += half.grad
        half.grad = None
