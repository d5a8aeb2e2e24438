"""Try whether a model gives rows that share a prompt, or are packed, what it gives padded rows.

Suffixes: B responses, L prompt and response tokens (right-padded), T response tokens.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.model.compiled import failing
from mugrpo.model.dtensors import local
from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.varlen import Kernel
from mugrpo.processes.messages import first_line

# Tokens of a row, of the prompts (the first two are one), and of the responses.
_SHORT = 8, (3, 3, 5), (3, 1, 2)
_LONG = 96, (40, 40, 70), (56, 1, 20)  # more than the 64 that a kernel takes at once
_KINDS = "hidden states", "logprobs"
_SHARED = np.array([0, 0, 1])  # the prompts' numbers

# Largest norm of a difference, relative to the norm, and the norm's order. In bf16, kernels may
# differ by a few percent; a wrong mask changes most numbers.
_IN_FP32, _IN_BF16 = (1e-3, math.inf), (0.1, 2)
_COMPILED_IN_BF16 = 0.02, 2  # compiled code rounds as what it stands for


def can_share_prompts(model: Any) -> bool:
    """Return whether responses may share their prompt, tried in fp32.

    They may not if the model mixes tokens other than by attention, or if its attention is not
    supported.
    """
    return row_fault(model, partial(response_logprobs, model)) is None


def row_fault(model: Any, compute: Callable[..., Any], kernel: Kernel | None = None) -> str | None:
    """Return what rows that share a prompt give otherwise than padded rows, or None.

    With a `kernel` that attends without masks, rows that share nothing are tried as well. `compute`
    is `response_logprobs` of the model. Hidden states and gradients are compared. (Logprobs
    tell little: most of each is the logarithm of the vocabulary's size.) Gradients stay what they
    were. Ranks that split the model all call this, and each compares its own rows.
    """
    tolerance, order = _IN_FP32 if kernel is None else _IN_BF16
    # All gradients lead to the first weights. A new adapter's first matrix has none.
    weights = _trained(model)[: 2 if kernel is None else 1]
    # Other gradients take memory. Copies in bf16 and ranks, on which kernels are tried, need them.
    only = weights if kernel is None else None
    computed = partial(_computed, compute, _SHORT if kernel is None else _LONG, weights, only)
    ways = {"shared prompts": _SHARED} | ({} if kernel is None else {"single rows": None})
    fault = None
    with _own_gradients(model):
        plain = computed(None, kernel=None)
        try:
            for kind, prompts_B in ways.items():
                found = zip(computed(prompts_B, kernel=kernel), plain, strict=True)
                for number, (ours, expected) in enumerate(found):
                    if not (ours - expected).norm(order) <= tolerance * expected.norm(order):
                        name = _KINDS[number] if number < 2 else "gradients of its first weights"
                        fault = fault or f"gives this model other {name} of {kind}"
        except Exception as error:  # other kinds of models may fail in any way
            fault = f"fails ({first_line(error)})"
    return fault


def compiled_fault(
    model: Any,
    compute: Callable[..., Any],
    running: Callable[[], AbstractContextManager[None]],
    *,
    kernel: Kernel | None,
    share: bool,
    half: bool,
) -> str | None:
    """Return what `compute` gives otherwise when it is compiled, as it is within `running`.

    `compute` is `response_logprobs` of the model, or of its copy in bf16 (`half`). Hidden states,
    logprobs and all gradients are compared, of rows that `share` a prompt. Gradients stay what they
    were.
    """
    tolerance, order = _COMPILED_IN_BF16 if half else _IN_FP32
    prompts_B = _SHARED if share else None
    computed = partial(_computed, compute, _LONG, _trained(model), None, prompts_B, kernel=kernel)
    with _own_gradients(model):
        plain = computed()
        try:
            with failing(), running():
                ours = computed(compiled=True)
        except Exception as error:  # a compiler may fail in any way
            return f"fails ({first_line(getattr(error, 'inner_exception', error))})"
    # Of some layers, rounding is much of a gradient; that of a bias of keys is nothing else.
    least = max((gradient.norm(order).item() for gradient in plain[2:]), default=0.0) * 0.15
    for number, (found, expected) in enumerate(zip(ours, plain, strict=True)):
        size, name = expected.norm(order), (*_KINDS, "gradients")[min(number, 2)]
        most = tolerance * (size if number < 2 else (2.5 * size).clamp(min=least))
        if not (found - expected).norm(order) <= most:
            return f"gives this model other {name}"
    return None


def _trained(model: Any) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@contextmanager
def _own_gradients(model: Any) -> Iterator[None]:
    """Begin without gradients, and leave the gradients that were there."""
    before = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


@torch.enable_grad()
def _computed(
    compute: Callable[..., Any],
    sizes: tuple[int, tuple[int, ...], tuple[int, ...]],
    weights: Sequence[torch.nn.Parameter],
    only: Sequence[torch.nn.Parameter] | None,
    prompts_B: NDArray[np.int64] | None,
    **how: Any,
) -> list[torch.Tensor]:
    """Return hidden states [N, H], logprobs [B, T], and gradients of a weighted sum of these.

    `compute` gets three rows, of which two have one prompt.
    """
    length, prompts, responses = sizes
    ids_BL = np.arange(3 * length).reshape(3, length) % 7 + 1
    ids_BL[1, : prompts[1]] = ids_BL[0, : prompts[0]]
    prompt_lengths_B, lengths_B = np.array([prompts, responses])
    mask_BT = np.arange(max(responses)) < lengths_B[:, None]
    rows = (ids_BL, prompt_lengths_B, mask_BT, prompts_B)
    hidden: list[torch.Tensor] = []
    logprobs_BT, _ = compute(*rows, temperature=1.0, chunk=16, watch=hidden.append, **how)
    for weight in weights:
        weight.grad = None
    if weights:
        factors = torch.linspace(-1, 2, mask_BT.size, device=logprobs_BT.device)
        (logprobs_BT * factors.view(mask_BT.shape)).sum().backward(inputs=only)
    gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    states = [hidden[0].detach(), logprobs_BT.detach(), *map(local, gradients)]
    return [tensor.float() for tensor in states]
