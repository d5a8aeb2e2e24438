"""CISPO. B responses, T tokens."""

import torch

from mugrpo.optimize.ratios import finite, log_ratios

METRICS = ("clipped_fraction",)


def loss(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    ratio_clip: tuple[float, float],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The clipped ratio as a constant weight, so that no token loses its gradient:

        loss_t = -sg[clip(r_t, low, high)] A log pi_t

    From MiniMax-M1 (arXiv 2506.13585). If low = 0, this equals TRL's loss_type "cispo" with
    epsilon_high = high (TRL has no lower bound). TRL counts only tokens with A > 0 as clipped.
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape and advantages_B.ndim == 1
    low, high = ratio_clip
    ratio_BT = log_ratios(logprobs_BT, behavior_BT).detach().exp()
    clipped_BT = ((ratio_BT < low) | (ratio_BT > high)) & mask_BT
    loss_BT = -ratio_BT.clamp(low, high) * advantages_B[:, None] * finite(logprobs_BT)
    return loss_BT, {"clipped_fraction": clipped_BT}
