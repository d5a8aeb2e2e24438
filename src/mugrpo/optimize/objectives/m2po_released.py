"""M2PO as in its released code. B responses, T tokens."""

from __future__ import annotations

import torch

from mugrpo.optimize.ratios import log_ratios, ppo_min

METRICS = ("clipped_fraction",)


def prepass(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    second_moment_limit: float,
) -> dict[str, torch.Tensor]:
    """Return the cap t on |log r| for all responses of an update: {"cap": [B, T], all equal}.

        T = tokens with (A > 0, r > 1) or (A < 0, r < 1)
        sum over T of min((log r)^2, t^2) = limit x |T|;   no cap if the sum without one is less

    With (log r)^2 in ascending order, the sum capped at the k-th value is a prefix sum plus a
    constant tail, so t follows from the first k at which this sum exceeds limit x |T|.
    """
    log_ratio_BT = log_ratios(logprobs, behavior_logprobs)
    away_BT = (advantages[:, None] * log_ratio_BT > 0) & mask
    squares = (log_ratio_BT[away_BT].double() ** 2).sort().values
    count = len(squares)
    budget = second_moment_limit * count
    cap, sums = torch.inf, squares.cumsum(0)
    before = torch.cat([squares.new_zeros(1), sums])[:count]
    tail = count - torch.arange(count, device=squares.device)
    beyond = (before + tail * squares > budget).nonzero()
    if len(beyond):
        first = int(beyond[0])
        cap = ((budget - before[first]) / tail[first]).sqrt().item()
    return {"cap": torch.full_like(log_ratio_BT, cap)}


def loss(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    second_moment_limit: float,
    cap: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The PPO min form with an interval derived from the second moment, unlike M2PO's paper:

        loss_t = -min(r_t A, clip(r_t, e^-cap, e^cap) A),   cap from `prepass`

    Equals GRPO with the interval [0, inf) if the limit is never exceeded.
    """
    assert logprobs.shape == behavior_logprobs.shape == mask.shape == cap.shape
    ratio_BT = log_ratios(logprobs, behavior_logprobs).exp()
    surrogate_BT, clipped_BT = ppo_min(ratio_BT, advantages[:, None], (-cap).exp(), cap.exp())
    return -surrogate_BT, {"clipped_fraction": clipped_BT & mask}
