"""MinPRO: the smallest ratio of the prefix. B responses, T tokens."""

import torch

from mugrpo.optimize.ratios import clamped, log_ratios, ppo_min

METRICS = ("clipped_fraction",)


def loss(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    ratio_clip: tuple[float, float],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The PPO min form on each token's ratio times the smallest ratio before it:

        w_t = r_t sg[min over j < t of r_j],   w_1 = r_1;   loss_t = -min(w_t A, clip(w_t) A)

    This is MinPRO (arXiv 2601.22718) as others describe it; the PPO form around w is inferred.
    Equals GRPO for responses of one token.
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape and advantages_B.ndim == 1
    log_ratio_BT = log_ratios(logprobs_BT, behavior_BT)
    least_BT = log_ratio_BT.detach().cummin(-1).values
    prefix_BT = torch.cat([torch.zeros_like(least_BT[:, :1]), least_BT[:, :-1]], -1)
    ratio_BT = clamped(log_ratio_BT + prefix_BT).exp()
    surrogate_BT, clipped_BT = ppo_min(ratio_BT, advantages_B[:, None], *ratio_clip)
    return -surrogate_BT, {"clipped_fraction": clipped_BT & mask_BT}
