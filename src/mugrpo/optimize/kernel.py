"""Choose the attention of updates on a GPU: torch's kernel without masks, if it agrees with masks.

Suffixes: B responses, L prompt and response tokens, T response tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mugrpo.model.dtensors import local
from mugrpo.model.policy import Policy
from mugrpo.model.varlen import Kernel, varlen_kernel
from mugrpo.optimize.forward import logprobs_function
from mugrpo.processes.messages import first_line

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

    Hidden states and a gradient of three short responses, two of them to one prompt, are compared
    with those of padded rows; once with that prompt shared, once without. (Logprobs differ too
    little: most of each is the logarithm of the vocabulary's size.) All ranks must call this.
    """
    fault = ""
    try:
        plain = _hidden_and_gradient(policy, None, shared=False)
        for shared in (True, False):
            for name, found in _hidden_and_gradient(policy, kernel, shared=shared).items():
                if not (found - plain[name]).norm() <= _TOLERANCE * plain[name].norm():
                    kind = "of shared prompts" if shared else "of single rows"
                    fault = fault or f"varlen_attn gives this model other {name} {kind}"
    except Exception as error:  # other kinds of models may fail in any way
        fault = f"varlen_attn fails ({first_line(error)})"
    for parameter in policy.model.parameters():
        parameter.grad = None
    return next(filter(None, policy.ranks.all(fault)), None)


def _hidden_and_gradient(
    policy: Policy, kernel: Kernel | None, *, shared: bool
) -> dict[str, torch.Tensor]:
    """Return hidden states, and the gradient of a weighted sum of logprobs by the first parameter.

    All layers' gradients lead to that one. Of a model that ranks share, only this rank's rows.
    """
    device = policy.device
    # More tokens than the 64 that a kernel takes at once.
    ids_BL = torch.arange(3 * 96, device=device).view(3, 96) % 7 + 1
    ids_BL[1, :40] = ids_BL[0, :40]
    prompt_lengths_B = torch.tensor([40, 40, 70], device=device)
    mask_BT = torch.arange(56, device=device) < torch.tensor([[56], [1], [20]], device=device)
    prompts_B = torch.tensor([0, 0, 1], device=device) if shared else None
    hidden: list[torch.Tensor] = []
    how: dict[str, Any] = {"temperature": 1.0, "chunk": 16, "kernel": kernel}
    first = next(p for p in policy.model.parameters() if p.requires_grad)
    first.grad = None
    with torch.enable_grad():
        logprobs_BT, _ = logprobs_function(policy)(
            ids_BL, prompt_lengths_B, mask_BT, prompts_B, watch=hidden.append, **how
        )
    weights_BT = torch.linspace(-1, 2, logprobs_BT.numel(), device=device).view_as(logprobs_BT)
    (logprobs_BT * weights_BT).sum().backward()
    gradient = torch.zeros_like(first) if first.grad is None else first.grad
    return {
        "hidden states": hidden[0].detach().float(),
        "gradients of its first weights": local(gradient).float(),
    }
