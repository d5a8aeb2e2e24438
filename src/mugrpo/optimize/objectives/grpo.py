"""GRPO. B responses, T tokens."""

from __future__ import annotations

import torch

METRICS = ("clipped_fraction",)


def loss(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    ratio_clip: tuple[float, float],
    dual_clip: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The PPO min form with one advantage for a whole response (arXiv 2402.03300, eq. 3):

        loss_t = -min(r_t A, clip(r_t, low, high) A),   r_t = exp(logprobs - behavior_logprobs)

    With dual clip c (arXiv 1912.09729) a token with A < 0 has loss_t <= -c A, so that its weight
    is bounded. Equals TRL's `_compute_loss` for loss_type "grpo", epsilon = 1 - low,
    epsilon_high = high - 1. TRL's `delta` bounds r before the clip, for both signs of A; it
    equals our c where c >= high.
    """
    assert logprobs.shape == behavior_logprobs.shape == mask.shape and advantages.ndim == 1
    low, high = ratio_clip
    advantages_B1 = advantages[:, None]
    log_ratio_BT = logprobs - behavior_logprobs
    ratio_BT = log_ratio_BT.detach().exp()
    clipped_BT = ((advantages_B1 > 0) & (ratio_BT > high)) | (
        (advantages_B1 < 0) & (ratio_BT < low)
    )
    if dual_clip is not None:
        clipped_BT = clipped_BT | ((advantages_B1 < 0) & (ratio_BT > dual_clip))
    # Where the loss is flat the ratio is a constant: beyond e^88 it is infinite, and 0 x inf NaN.
    ratio_BT = torch.where(clipped_BT, log_ratio_BT.detach(), log_ratio_BT).exp()
    surrogate_BT = torch.min(ratio_BT * advantages_B1, ratio_BT.clamp(low, high) * advantages_B1)
    if dual_clip is not None:
        bound_B1 = torch.where(advantages_B1 < 0, dual_clip * advantages_B1, -torch.inf)
        surrogate_BT = torch.max(surrogate_BT, bound_B1)
    return -surrogate_BT, {"clipped_fraction": clipped_BT & mask}
