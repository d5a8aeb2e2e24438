"""CTPO: the ratio of a token and its prefix, clipped by its position. B responses, T tokens."""

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
    log_clip: tuple[float, float],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The PPO min form on the cumulative token ratio (CTPO, arXiv 2605.07331):

        q_t = prod over j <= t of r_j,   loss_t = -min(q_t A, clip(q_t, low_t, high_t) A)
        low_t = exp(log_clip[0] sqrt(t)),   high_t = exp(log_clip[1] sqrt(t)),   t = 1, 2, ...

    The prefix has no gradient: that of q_t is q_t times the token's own. log q_t is a sum of t
    terms, so it spreads as sqrt(t). With A < 0, q_t is bounded by high_t, too, a dual clip. Both
    are as in the authors' code (`cum-token-cumprod-la`). Equals GRPO with a dual clip at its upper
    bound for responses of one token.

    `logprobs`, `behavior_logprobs` and `mask` (bool) are [B, T], `advantages` [B]. Return the token
    losses, to be minimized, and the clipped tokens as a metric, all [B, T].
    """
    assert logprobs.shape == behavior_logprobs.shape == mask.shape and advantages.ndim == 1
    own_BT = log_ratios(logprobs, behavior_logprobs)
    prefix_BT = (own_BT.detach() * mask).cumsum(-1) - own_BT.detach()
    ratio_BT, advantages_B1 = clamped(prefix_BT + own_BT).exp(), advantages[:, None]
    root_BT = mask.cumsum(-1).to(own_BT.dtype).sqrt()
    low_BT, high_BT = ((bound * root_BT).exp() for bound in log_clip)
    surrogate_BT, clipped_BT = ppo_min(ratio_BT, advantages_B1, low_BT, high_BT)
    beyond_BT = (advantages_B1 < 0) & (ratio_BT > high_BT)
    surrogate_BT = torch.where(beyond_BT, high_BT * advantages_B1, surrogate_BT)
    return -surrogate_BT, {"clipped_fraction": (clipped_BT | beyond_BT) & mask}
