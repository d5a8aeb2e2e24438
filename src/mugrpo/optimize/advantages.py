"""Rewards become advantages. P problems, G responses per group; all [P, G], in float64.

Responses with `valid_PG` false (their reward is not known, or masked) take no part in their group's
statistics and get 0.
"""

from __future__ import annotations

from typing import Literal

import torch


def group(
    rewards_PG: torch.Tensor,
    valid_PG: torch.Tensor,
    *,
    std: Literal["unbiased", "population", "none"] = "unbiased",
    eps: float = 1e-4,
    eps_inside: bool = False,
) -> torch.Tensor:
    """A = (R - mean) / (std + eps) over each group's valid responses.

    DeepSeekMath, arXiv 2402.03300, section 4.1, with the unbiased standard deviation and 1e-4 as in
    TRL (verl adds 1e-6). `eps_inside`: / sqrt(var + eps), off-policy GRPO, arXiv 2505.22257. std
    "none": A = R - mean, Dr. GRPO, arXiv 2503.20783. A group whose valid rewards are all equal,
    compared exactly, or with fewer than two, is all 0.
    """
    advantages_PG = _centered(rewards_PG, valid_PG)
    if std == "none":
        return advantages_PG
    counts_P1 = valid_PG.sum(-1, keepdim=True) - int(std == "unbiased")
    variance_P1 = (advantages_PG**2).sum(-1, keepdim=True) / counts_P1.clamp(min=1)
    divisor_P1 = (variance_P1 + eps).sqrt() if eps_inside else variance_P1.sqrt() + eps
    return advantages_PG / divisor_P1


def shifted(rewards_PG: torch.Tensor, valid_PG: torch.Tensor, *, baseline: float) -> torch.Tensor:
    """A = R - baseline (TOPR, arXiv 2503.14286: unshifted, negatives would have no gradient)."""
    return (rewards_PG.double() - baseline).masked_fill(~valid_PG, 0.0)


def asymre(rewards_PG: torch.Tensor, valid_PG: torch.Tensor, *, delta: float) -> torch.Tensor:
    """A = R - (mean + delta) over each group's valid responses (AsymRE, arXiv 2506.20520)."""
    return (_centered(rewards_PG, valid_PG) - delta).masked_fill(~valid_PG, 0.0)


def varied(rewards_PG: torch.Tensor, valid_PG: torch.Tensor) -> torch.Tensor:
    """Whether a group has two valid rewards that differ, compared exactly: [P] bool."""
    assert rewards_PG.shape == valid_PG.shape and rewards_PG.ndim == 2
    highest_P = rewards_PG.masked_fill(~valid_PG, -torch.inf).max(-1).values
    lowest_P = rewards_PG.masked_fill(~valid_PG, torch.inf).min(-1).values
    return highest_P > lowest_P


def _centered(rewards_PG: torch.Tensor, valid_PG: torch.Tensor) -> torch.Tensor:
    """R - mean of the valid ones; exactly 0 where they are all equal."""
    rewards_PG = rewards_PG.double()
    total_P1 = rewards_PG.masked_fill(~valid_PG, 0.0).sum(-1, keepdim=True)
    mean_P1 = total_P1 / valid_PG.sum(-1, keepdim=True).clamp(min=1)
    kept_PG = valid_PG & varied(rewards_PG, valid_PG)[:, None]
    return (rewards_PG - mean_P1).masked_fill(~kept_PG, 0.0)
