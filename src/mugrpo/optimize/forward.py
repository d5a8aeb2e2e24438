"""The forward pass of training: logprobs of a micro-batch, or of stored rollouts.

Suffixes: B responses, L prompt and response tokens, T response tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Rollout
from mugrpo.model.attention import Kernel, varlen_kernel
from mugrpo.model.files import local
from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.policy import Policy
from mugrpo.model.shared_prompts import can_share_prompts
from mugrpo.optimize.balance import Price, rounds
from mugrpo.optimize.experience import MicroBatch, Responses, TokenBudget, collate, computing
from mugrpo.optimize.fsdp import release
from mugrpo.processes.messages import first_line

# Tokens whose logits exist at once: 620 MB in fp32 with a vocabulary of 152,000.
LOGPROB_CHUNK = 1024


def batch_logprobs(
    policy: Policy, batch: MicroBatch, config: RunConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logprobs and entropy of the batch's sampled tokens under `policy`, both [B, T].

    Both are in nats, of softmax(logits / temperature) with the config's temperature, and 0 where
    the batch's mask is false. Only logprobs have a gradient.
    """
    return _logprobs_function(policy)(
        batch.ids,
        batch.prompt_lengths,
        batch.mask,
        batch.prompts,
        temperature=config.rollouts.temperature,
        chunk=LOGPROB_CHUNK,
        kernel=policy.kernel,
        steps_BT=batch.steps,
    )


def _logprobs_function(policy: Policy) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return what computes logprobs and entropy under `policy`, see `response_logprobs`."""
    return policy.compute or partial(response_logprobs, policy.working())


def shares_prompts(policy: Policy) -> bool:
    """Return whether responses may share their prompt. The model is tested only once."""
    if policy.can_share_prompts is None:
        policy.can_share_prompts = can_share_prompts(policy.model)
    return policy.can_share_prompts


def rounds_of(
    policy: Policy, rollouts: Sequence[Rollout], tokens: int, share: bool
) -> list[list[int]]:
    """Return the micro-batches of the policy's ranks, see `balance.rounds`.

    The first rank cuts for all, as many ranks on a machine would slow each other down. All ranks
    must call this.
    """
    ranks = policy.ranks
    price = Price.of(policy.model) if ranks.size > 1 and ranks.first else Price()

    def parts_of() -> list[list[int]]:
        return rounds(rollouts, tokens, share=share, ranks=ranks.size, price=price)

    return ranks.from_first(parts_of() if ranks.first else None)


@torch.no_grad()
def rollout_logprobs(
    policy: Policy,
    rollouts: Sequence[Rollout],
    config: RunConfig,
    budget: TokenBudget | None = None,
    check: Callable[[], None] = lambda: None,
) -> list[NDArray[np.float32]]:
    """Return the logprobs [T] of each rollout's response under `policy`, in order.

    Those of tokens that the policy did not sample are 0. The ranks that share a policy all make the
    same call, and share the work. `check` is called before each micro-batch. Without a `budget`,
    micro-batches have the configured size. Raises RunStopped if memory runs out, see `TokenBudget`.
    """
    share = shares_prompts(policy)
    zeros = torch.zeros(len(rollouts))
    responses = Responses(rollouts, zeros, zeros.bool(), zeros.bool())

    def logprobs_with(tokens: int) -> list[NDArray[np.float32]]:
        own: dict[int, torch.Tensor] = {}
        parts = rounds_of(policy, rollouts, tokens, share)
        for number, counts in policy.ranks.turns(len(parts)):
            check()
            places = parts[number]
            batch = collate(
                responses, places, pad_id=policy.pad_id, device=policy.device, share=share
            )
            with computing(batch):
                logprobs_BT, _ = batch_logprobs(policy, batch, config)
            for place, logprobs_T in zip(places, logprobs_BT.float().cpu(), strict=True):
                if counts:
                    rollout = rollouts[place]
                    own[place] = torch.zeros(len(rollout.response_ids))
                    own[place][rollout.sampled] = logprobs_T[: rollout.sampled_tokens]
        release(policy)
        by_place = {k: v for part in policy.ranks.all(own) for k, v in part.items()}
        return [by_place[place].numpy() for place in range(len(rollouts))]

    return (budget or TokenBudget(config.optimizer)).fitted(logprobs_with)


# Choose the attention of updates on a GPU: torch's kernel without masks, if it agrees with masks.


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
        logprobs_BT, _ = _logprobs_function(policy)(
            ids_BL, prompt_lengths_B, mask_BT, prompts_B, watch=hidden.append, **how
        )
    weights_BT = torch.linspace(-1, 2, logprobs_BT.numel(), device=device).view_as(logprobs_BT)
    (logprobs_BT * weights_BT).sum().backward()
    gradient = torch.zeros_like(first) if first.grad is None else first.grad
    return {
        "hidden states": hidden[0].detach().float(),
        "gradients of its first weights": local(gradient).float(),
    }
