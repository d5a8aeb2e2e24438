"""A copy of a model in bf16, which forward and backward passes use in place of fp32 weights.

The weights that are trained stay in fp32. bf16 keeps 8 bits, and most updates are too small to
change the last of them (Micikevicius et al., arXiv 1710.03740, section 3.1).

bf16 rounds many numbers to one. Where among them a weight is when training begins decides what
its copy shows of an update. If the checkpoint is in bf16, every weight is in the middle, and its
copy shows nothing until the weight has moved by half a step. If it is in fp16, one weight in eight
is at an end, and its copy moves by a whole step, as the first update points, however small that is.
So weights begin at random places, and the mean of the copies moves as that of the weights does
(non-subtractive dither, Wannamaker et al., IEEE Transactions on Signal Processing 48, 2000).
"""

import copy
from typing import Any

import torch
from torch import nn

from mugrpo.model.dtensors import local

_HALFWAY = 2**15  # of the 2**16 numbers of fp32 from one of bf16 to the next


@torch.no_grad()
def begin_in_bf16(model: nn.Module, seed: int) -> None:
    """Spread the trained weights of `model` evenly over the numbers that bf16 rounds to the same.

    A copy of it computes what it did before. Adding to the bits of a number's magnitude cannot
    leave that interval, whose ends are halfway to the next numbers of bf16.
    """
    for number, weight in enumerate(model.parameters()):
        if weight.requires_grad:
            rounded = local(weight).bfloat16().float()
            bits = rounded.view(torch.int32)
            generator = torch.Generator(bits.device).manual_seed(seed + number)
            bits += torch.where(
                rounded == 0,
                0,
                torch.empty_like(bits).random_(1 - _HALFWAY, _HALFWAY, generator=generator),
            )
            local(weight).copy_(rounded)


def halve_frozen(model: nn.Module) -> None:
    """Round the weights of `model` that are not trained to bf16: its copy needs no others."""
    for weight in model.parameters():
        if not weight.requires_grad:
            weight.data = weight.data.bfloat16()


class HalfCopy:
    """A copy of `model` whose floating-point weights are in bf16, in `working`.

    `renew` rounds the model's weights of now into the copy. A backward pass through the copy adds
    its gradients, in fp32, to those of the model. Other tensors are shared: buffers, and those that
    `halve_frozen` has rounded.
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
            if weight.dtype == torch.bfloat16:
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
