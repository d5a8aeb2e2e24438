"""Target policy optimization: a group's responses move to a target distribution. B, T as usual."""

from __future__ import annotations

import torch

from mugrpo.optimize.ratios import finite

METRICS = ("target_gap",)
NEEDS_GROUPS = True
NEEDS_ZERO_ADVANTAGES = True  # a response with advantage 0 has a target as well


def prepass(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    groups: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Return p_i - q_i of each response (see `loss`) at each of its tokens, as "gap" [B, T].

    `groups` [B] int64 numbers the group of each response.
    """
    now_B = (finite(logprobs) * mask).sum(-1).double()
    target_B = (finite(behavior_logprobs) * mask).sum(-1).double() + advantages.double()
    gap_B = torch.empty_like(now_B)
    for group in groups.unique():
        chosen = groups == group
        gap_B[chosen] = now_B[chosen].softmax(0) - target_B[chosen].softmax(0)
    return {"gap": gap_B.to(logprobs.dtype)[:, None].expand_as(mask)}


def loss(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    gap: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The cross-entropy from a target to the policy, over a group's responses (arXiv 2604.06159):

        p = softmax over i of log pi(y_i)       q_i ~ behavior(y_i) exp(A_i)
        loss_t = sg[p_i - q_i] log pi_t         whose sum has the gradient of -sum_i q_i log p_i

    The gradient vanishes at the target, so further updates cannot overrun it.
    """
    assert logprobs.shape == behavior_logprobs.shape == mask.shape and advantages.ndim == 1
    return gap * finite(logprobs), {"target_gap": gap.abs() * mask}
