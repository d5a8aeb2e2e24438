"""Try whether a model gives rows that share a prompt, or are packed, what it gives padded rows.

Suffixes: B responses, L prompt and response tokens (right-padded), T response tokens.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mugrpo.model.dtensors import local
from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.varlen import Kernel
from mugrpo.processes.messages import first_line

# Tokens of a row, of the prompts (the first two are one), and of the responses.
_SHORT = 8, (3, 3, 5), (3, 1, 2)
_LONG = 96, (40, 40, 70), (56, 1, 20)  # more than the 64 that a kernel takes at once

# Largest norm of a difference, relative to the norm, and the norm's order. In bf16, kernels may
# differ by a few percent; a wrong mask changes most numbers.
_IN_FP32, _IN_BF16 = (1e-3, math.inf), (0.1, 2)


def can_share_prompts(model: Any) -> bool:
    """Return whether responses may share their prompt, tried in fp32.

    They may not if the model mixes tokens other than by attention, or if its attention is not
    supported.
    """
    return row_fault(model, partial(response_logprobs, model)) is None


def row_fault(model: Any, compute: Callable[..., Any], kernel: Kernel | None = None) -> str | None:
    """Return what rows that share a prompt give otherwise than padded rows, or None.

    With a `kernel` that attends without masks, rows that share nothing are tried as well. `compute`
    is `response_logprobs` of the model. Hidden states and gradients are compared. (Logprobs differ
    too little: most of each is the logarithm of the vocabulary's size.) Gradients stay what they
    were. Ranks that split the model all call this, and each compares its own rows.
    """
    length, prompts, responses = _SHORT if kernel is None else _LONG
    tolerance, order = _IN_FP32 if kernel is None else _IN_BF16
    ids_BL = torch.arange(3 * length).view(3, length) % 7 + 1
    ids_BL[1, : prompts[1]] = ids_BL[0, : prompts[0]]
    prompt_lengths_B, lengths_B = torch.tensor([prompts, responses])
    mask_BT = torch.arange(max(responses)) < lengths_B[:, None]
    factors_BT = torch.linspace(-1, 2, mask_BT.numel(), device=model.device).view(mask_BT.shape)
    before = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    # All gradients lead to the first weights. A new adapter's first matrix has none.
    weights = [p for p in model.parameters() if p.requires_grad][: 2 if kernel is None else 1]
    # Other gradients take memory. Copies in bf16 and ranks, on which kernels are tried, need them.
    only = weights if kernel is None else None

    @torch.enable_grad()
    def computed(prompts_B: torch.Tensor | None, kernel: Kernel | None) -> list[torch.Tensor]:
        """Return hidden states [N, H], and the gradients of a weighted sum of logprobs."""
        hidden: list[torch.Tensor] = []
        how = {"temperature": 1.0, "chunk": 16, "kernel": kernel, "watch": hidden.append}
        logprobs_BT, _ = compute(ids_BL, prompt_lengths_B, mask_BT, prompts_B, **how)
        for weight in weights:
            weight.grad = None
        if weights:
            (logprobs_BT * factors_BT).sum().backward(inputs=only)
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        return [hidden[0].detach().float(), *(local(gradient).float() for gradient in gradients)]

    plain, shared_B = computed(None, None), torch.tensor([0, 0, 1])
    ways = {"shared prompts": shared_B} | ({} if kernel is None else {"single rows": None})
    fault = None
    try:
        for kind, prompts_B in ways.items():
            for found, expected in zip(computed(prompts_B, kernel), plain, strict=True):
                if not (found - expected).norm(order) <= tolerance * expected.norm(order):
                    first = expected is plain[0]
                    name = "hidden states" if first else "gradients of its first weights"
                    fault = fault or f"gives this model other {name} of {kind}"
    except Exception as error:  # other kinds of models may fail in any way
        fault = f"fails ({first_line(error)})"
    for parameter, gradient in before:
        parameter.grad = gradient
    return fault
