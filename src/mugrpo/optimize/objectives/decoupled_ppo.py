"""Decoupled PPO. B responses, T tokens."""

import torch

from mugrpo.optimize.ratios import LARGEST, log_ratios, ppo_min

METRICS = ("clipped_fraction",)


def loss(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    ratio_clip: tuple[float, float],
    proximal_logprobs: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The PPO min form around a proximal policy, weighted back to the behavior policy:

        loss_t = -sg[prox_t / beta_t] min(q_t A, clip(q_t, low, high) A),   q_t = pi_t / prox_t

    From "Batch size-invariance for policy optimization" (arXiv 2110.00641); also AReaL's objective
    (arXiv 2505.24298). Equals GRPO if the proximal policy is the behavior policy.
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape == proximal_logprobs.shape
    log_weight_BT = log_ratios(proximal_logprobs, behavior_BT).detach()
    log_ratio_BT = log_ratios(logprobs_BT, proximal_logprobs)
    log_product_BT = log_weight_BT + log_ratio_BT.detach()  # limited to e^80, as every ratio is
    weight_BT = (log_weight_BT - (log_product_BT - LARGEST).clamp(min=0)).exp()
    ratio_BT = log_ratio_BT.exp()
    surrogate_BT, clipped_BT = ppo_min(ratio_BT, advantages_B[:, None], *ratio_clip)
    return -weight_BT * surrogate_BT, {"clipped_fraction": clipped_BT & mask_BT}
