"""Choose the attention of updates on a GPU: torch's kernel without masks, if it agrees with masks.

Suffixes: B responses, L prompt and response tokens, T response tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mugrpo.model.dtensors import local
from mugrpo.model.loading import first_line
from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.policy import Policy
from mugrpo.model.varlen import Kernel, varlen_kernel

# Largest norm of a difference, relative to the norm. In bf16, kernels may differ by a few percent;
# a wrong mask changes most numbers.
_TOLERANCE = 0.1


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

    Logprobs and gradients of three short responses, two of them to one prompt, are compared with
    those of padded rows. Rotary embeddings that depend on the sequence's length are refused
    without a test: they would differ only beyond the tested length. All ranks must call this.
    """
    rope = str(getattr(policy.model.config, "rope_parameters", None))
    if "dynamic" in rope or "longrope" in rope:
        return "the model's rotary embeddings depend on the sequence's length"
    try:
        plain, packed = _computed(policy, None), _computed(policy, kernel)
    except Exception as error:  # other kinds of models may fail in any way
        fault = f"varlen_attn fails ({first_line(error)})"
    else:
        pairs = zip(packed, plain, strict=True)
        agree = all(bool((a - b).norm() <= _TOLERANCE * b.norm()) for a, b in pairs)
        fault = "" if agree else "varlen_attn gives this model other logprobs or gradients"
    for parameter in policy.model.parameters():
        parameter.grad = None
    return next(filter(None, policy.ranks.all(fault)), None)


def _computed(policy: Policy, kernel: Kernel | None) -> list[torch.Tensor]:
    """Return logprobs, and gradients of a weighted sum of them.

    Of a model that ranks share, only this rank's rows of the gradients.
    """
    device = policy.device
    ids_BL = torch.arange(3 * 8, device=device).view(3, 8) % 7 + 1
    ids_BL[1, :3] = ids_BL[0, :3]
    prompt_lengths_B = torch.tensor([3, 3, 5], device=device)
    mask_BT = torch.arange(5, device=device) < torch.tensor([[5], [1], [3]], device=device)
    prompts_B = None if kernel is None else torch.tensor([0, 0, 1], device=device)
    compute = policy.compute or partial(response_logprobs, policy.working())
    with torch.enable_grad():
        logprobs_BT, _ = compute(
            ids_BL, prompt_lengths_B, mask_BT, prompts_B, temperature=1.0, chunk=16, kernel=kernel
        )
    weights_BT = torch.linspace(-1, 2, logprobs_BT.numel(), device=device).view_as(logprobs_BT)
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    for parameter in weights:
        parameter.grad = None
    (logprobs_BT * weights_BT).sum().backward()
    few = [p.grad for p in weights[:2]]  # all of them could take as much memory as the model
    return [logprobs_BT.detach(), *(local(grad).float() for grad in few if grad is not None)]
