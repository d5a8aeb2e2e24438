"""Choose the attention of updates on a GPU: torch's kernel without masks, if it agrees with masks.

Suffixes: B responses, L prompt and response tokens, T response tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mugrpo.model.dtensors import local
from mugrpo.model.loading import first_line
from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.policy import Policy
from mugrpo.model.varlen import Kernel, varlen_kernel

# Largest norm of a difference, relative to the norm. In bf16, kernels may differ by a few percent;
# a wrong mask changes most numbers.
_TOLERANCE = 0.1
_NUMBERS = 1000  # of each gradient that are compared


def choose_kernel(policy: Policy, say: Callable[[str], None]) -> None:
    """Let `policy` attend without masks and padding if it runs in bf16 on a GPU and agrees.

    Call `say` with a sentence if it does not. All ranks must call this.
    """
    if policy.device.type != "cuda" or policy.precision != "bf16":
        return
    kernel = varlen_kernel()
    fault = "this torch has no varlen_attn" if kernel is None else kernel_fault(policy, kernel)
    policy.kernel = None if fault else kernel
    if fault:
        say(f"attention is computed with masks and padding, which takes longer: {fault}")


def kernel_fault(policy: Policy, kernel: Kernel) -> str | None:
    """Return why `policy` must not use `kernel`, or None.

    Hidden states, logprobs and gradients of three short responses, two of them to one prompt, are
    compared with those of padded rows; once with that prompt shared, once without. Rotary
    embeddings that depend on the sequence's length are refused without a test: they would differ
    only beyond the tested length. All ranks must call this.
    """
    rope = str(getattr(policy.model.config, "rope_parameters", None))
    if "dynamic" in rope or "longrope" in rope:
        return "the model's rotary embeddings depend on the sequence's length"
    try:
        plain = _computed(policy, None, shared=False)
        packed = {shared: _computed(policy, kernel, shared=shared) for shared in (True, False)}
    except Exception as error:  # other kinds of models may fail in any way
        fault = f"varlen_attn fails ({first_line(error)})"
    else:
        differing = [
            f"{name} {'of shared prompts' if shared else 'of single rows'}"
            for shared, found in packed.items()
            for name in plain
            if not _agree(found[name], plain[name])
        ]
        fault = f"varlen_attn gives this model other {differing[0]}" if differing else ""
    for parameter in policy.model.parameters():
        parameter.grad = None
    return next(filter(None, policy.ranks.all(fault)), None)


def _agree(found: torch.Tensor, plain: torch.Tensor) -> bool:
    return bool((found - plain).norm() <= _TOLERANCE * plain.norm())


def _computed(policy: Policy, kernel: Kernel | None, *, shared: bool) -> dict[str, torch.Tensor]:
    """Return hidden states, logprobs, and gradients of a weighted sum of the logprobs.

    Of the gradients, those of the first parameter, which all layers' gradients lead to, and some
    numbers of each of the others: all numbers could take as much memory as the model. Of a model
    that ranks share, only this rank's rows.
    """
    device = policy.device
    # More tokens than the 64 that a kernel takes at once.
    ids_BL = torch.arange(3 * 96, device=device).view(3, 96) % 7 + 1
    ids_BL[1, :40] = ids_BL[0, :40]
    prompt_lengths_B = torch.tensor([40, 40, 70], device=device)
    mask_BT = torch.arange(56, device=device) < torch.tensor([[56], [1], [20]], device=device)
    prompts_B = torch.tensor([0, 0, 1], device=device) if shared else None
    compute = policy.compute or partial(response_logprobs, policy.working())
    hidden: list[torch.Tensor] = []
    how: dict[str, Any] = {"temperature": 1.0, "chunk": 16, "kernel": kernel}
    with torch.enable_grad():
        logprobs_BT, _ = compute(
            ids_BL, prompt_lengths_B, mask_BT, prompts_B, watch=hidden.append, **how
        )
    weights_BT = torch.linspace(-1, 2, logprobs_BT.numel(), device=device).view_as(logprobs_BT)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = None
    (logprobs_BT * weights_BT).sum().backward()
    first, *others = (
        local(torch.zeros_like(p) if p.grad is None else p.grad).float() for p in trained
    )
    return {
        "hidden states": hidden[0].detach().float(),
        "logprobs": logprobs_BT.detach(),
        "gradients of its first weights": first,
        "gradients": torch.cat([grad.flatten()[:_NUMBERS] for grad in others]),
    }
