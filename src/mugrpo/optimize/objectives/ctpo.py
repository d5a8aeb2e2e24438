"""CTPO: the ratio of a token and its prefix, clipped by its position. B responses, T tokens."""

import torch

from mugrpo.optimize.ratios import clamped, log_ratios, ppo_min

METRICS = ("clipped_fraction",)


def loss(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    log_clip: tuple[float, float],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The PPO min form on the cumulative token ratio (CTPO, arXiv 2605.07331):

        q_t = prod over j <= t of r_j,   loss_t = -min(q_t A, clip(q_t, low_t, high_t) A)
        low_t = exp(log_clip[0] sqrt(t)),   high_t = exp(log_clip[1] sqrt(t)),   t = 1, 2, ...

    The prefix has no gradient: that of q_t is q_t times the token's own. log q_t is a sum of t
    terms, so it spreads as sqrt(t). With A < 0, q_t is bounded by high_t, too, a dual clip. Both
    are as in the authors' code (`cum-token-cumprod-la`). Equals GRPO with a dual clip at its upper
    bound for responses of one token.

    Return the token losses, to be minimized, and the clipped tokens as a metric, all [B, T].
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape and advantages_B.ndim == 1
    own_BT = log_ratios(logprobs_BT, behavior_BT)
    prefix_BT = (own_BT.detach() * mask_BT).cumsum(-1) - own_BT.detach()
    ratio_BT, advantages_B1 = clamped(prefix_BT + own_BT).exp(), advantages_B[:, None]
    root_BT = mask_BT.cumsum(-1).to(own_BT.dtype).sqrt()
    low_BT, high_BT = ((bound * root_BT).exp() for bound in log_clip)
    surrogate_BT, clipped_BT = ppo_min(ratio_BT, advantages_B1, low_BT, high_BT)
    beyond_BT = (advantages_B1 < 0) & (ratio_BT > high_BT)
    surrogate_BT = torch.where(beyond_BT, high_BT * advantages_B1, surrogate_BT)
    return -surrogate_BT, {"clipped_fraction": (clipped_BT | beyond_BT) & mask_BT}
