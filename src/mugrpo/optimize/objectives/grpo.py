"""GRPO, with GSPO's ratio and off-policy GRPO's clip as options. B responses, T tokens."""

from typing import Literal

import torch

from mugrpo.optimize.ratios import log_ratios, ppo_min, sequence_log_ratios

METRICS = ("clipped_fraction",)


def loss(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    ratio_clip: tuple[float, float],
    dual_clip: float | None = None,
    level: Literal["token", "sequence"] = "token",
    clip_center: Literal["behavior", "proximal"] = "behavior",
    proximal_logprobs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The PPO min form with one advantage per response (arXiv 2402.03300, eq. 3):

        loss_t = -min(r_t A, clip(r_t, low, high) A),   r_t = exp(logprobs - behavior_logprobs)

    With level "sequence", r_t is exp(mean over t of log r_t) (GSPO, arXiv 2507.18071).
    With clip_center "proximal", the interval is placed around r' = proximal / behavior instead of
    1: [max(r' - (1 - low), 0), r' + (high - 1)] (off-policy GRPO, arXiv 2505.22257; that r' is per
    token is inferred from its code). It never clips if the proximal policy is the policy itself.
    With dual clip c (arXiv 1912.09729), a token with A < 0 has loss_t <= -c A.

    Equals TRL's `_compute_loss` with loss_type "grpo" or "dapo", epsilon = 1 - low and
    epsilon_high = high - 1. Level "sequence" equals TRL's importance_sampling_level "sequence",
    except with a correction that weights tokens differently or with a corrected KL term: there TRL
    gives every token the gradient and ratio of the response. TRL's `delta` bounds r before the
    clip, for both signs of A; it equals our c if c >= high.

    Return the token losses, to be minimized, and the clipped tokens as a metric, all [B, T].
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape and advantages_B.ndim == 1
    low: float | torch.Tensor
    high: float | torch.Tensor
    low, high = ratio_clip
    log_ratio_BT = log_ratios(logprobs_BT, behavior_BT)
    if level == "sequence":
        log_ratio_BT = sequence_log_ratios(log_ratio_BT, mask_BT)
    if clip_center == "proximal":
        assert proximal_logprobs is not None
        center_BT = log_ratios(proximal_logprobs, behavior_BT)
        if level == "sequence":
            center_BT = sequence_log_ratios(center_BT, mask_BT)
        center_BT = center_BT.exp()
        low, high = (center_BT - (1 - low)).clamp(min=0), center_BT + (high - 1)
    ratio_BT, advantages_B1 = log_ratio_BT.exp(), advantages_B[:, None]
    surrogate_BT, clipped_BT = ppo_min(ratio_BT, advantages_B1, low, high)
    if dual_clip is not None:
        beyond_BT = (advantages_B1 < 0) & (ratio_BT > dual_clip)
        surrogate_BT = torch.where(beyond_BT, dual_clip * advantages_B1, surrogate_BT)
        clipped_BT = clipped_BT | beyond_BT
    return -surrogate_BT, {"clipped_fraction": clipped_BT & mask_BT}
