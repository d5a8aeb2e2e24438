"""Choose the attention of updates on a GPU: a kernel without masks, if it agrees with masks."""

from collections.abc import Callable

from mugrpo.model.policy import Policy
from mugrpo.model.self_test import row_fault
from mugrpo.model.varlen import Kernel, varlen_kernel
from mugrpo.optimize.forward import logprobs_function


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
    """Return why `policy` must not use `kernel`, or None. All ranks must call this."""
    fault = row_fault(policy.model, logprobs_function(policy), kernel)
    first = next(filter(None, policy.ranks.all(fault)), None)
    return first and f"varlen_attn {first}"
