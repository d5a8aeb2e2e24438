"""MinPRO: the smallest ratio of the prefix. B responses, T tokens."""

from __future__ import annotations

import torch

from mugrpo.optimize.ratios import clamped, log_ratios, ppo_min

METRICS = ("clipped_fraction",)


def loss(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    ratio_clip: tuple[float, float],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The PPO min form on each token's ratio times the smallest ratio before it:

        w_t = r_t sg[min over j < t of r_j],   w_1 = r_1;   loss_t = -min(w_t A, clip(w_t) A)

    This is MinPRO (arXiv 2601.22718) as others describe it; the PPO form around w is inferred.
    Equals GRPO for responses of one token.
    """
    assert logprobs.shape == behavior_logprobs.shape == mask.shape and advantages.ndim == 1
    log_ratio_BT = log_ratios(logprobs, behavior_logprobs)
    least_BT = log_ratio_BT.detach().cummin(-1).values
    prefix_BT = torch.cat([torch.zeros_like(least_BT[:, :1]), least_BT[:, :-1]], -1)
    ratio_BT = clamped(log_ratio_BT + prefix_BT).exp()
    surrogate_BT, clipped_BT = ppo_min(ratio_BT, advantages[:, None], *ratio_clip)
    return -surrogate_BT, {"clipped_fraction": clipped_BT & mask}
