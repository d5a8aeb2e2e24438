"""Compute advantages [P, G] in float64 from rewards [P, G]. P problems, G responses per group.

A response with `valid_PG` false (its reward is unknown or masked) gets an advantage of 0 and does
not count in its group's statistics. The functions `group`, `shifted` and `asymre` are chosen by
`advantage.name`; a file of your own has one called `advantages` (see docs/objectives.md).
"""

from typing import Literal

import torch

_EPS = 1e-4  # as in TRL and off-policy GRPO; verl adds 1e-6


def group(
    rewards_PG: torch.Tensor,
    valid_PG: torch.Tensor,
    *,
    std: Literal["unbiased", "population", "none"] = "unbiased",
) -> torch.Tensor:
    """Return A = (R - mean) / (std + 1e-4) over each group's valid responses, [P, G] float64.

    The formula is from DeepSeekMath (arXiv 2402.03300, section 4.1). By default the standard
    deviation is unbiased, as in TRL. With std "population", it is that of off-policy GRPO (arXiv
    2505.22257), A = (R - mean) / sqrt(variance + 1e-4), where the variance divides by the number of
    responses. With std "none", A = R - mean, as in Dr. GRPO (arXiv 2503.20783). All advantages of a
    group are 0 if its valid rewards are all equal, compared exactly, or if it has fewer than two.
    `rewards_PG` has P groups of G rewards; those where `valid_PG` (bool) is false count in nothing,
    and their advantages are 0.
    """
    advantages_PG = _centered(rewards_PG, valid_PG)
    if std == "none":
        return advantages_PG
    counts_P1 = valid_PG.sum(-1, keepdim=True) - int(std == "unbiased")
    variance_P1 = (advantages_PG**2).sum(-1, keepdim=True) / counts_P1.clamp(min=1)
    if std == "population":
        return advantages_PG / (variance_P1 + _EPS).sqrt()
    return advantages_PG / (variance_P1.sqrt() + _EPS)


def shifted(rewards_PG: torch.Tensor, valid_PG: torch.Tensor, *, baseline: float) -> torch.Tensor:
    """Return A = R - baseline, with the same baseline for every problem.

    Without the shift, wrong responses with a reward of 0 would have no gradient in TOPR (arXiv
    2503.14286).
    """
    return (rewards_PG.double() - baseline).masked_fill(~valid_PG, 0.0)


def asymre(rewards_PG: torch.Tensor, valid_PG: torch.Tensor, *, delta: float) -> torch.Tensor:
    """Return A = R - (mean + delta) over each group's valid responses.

    This is the advantage of AsymRE (arXiv 2506.20520).
    """
    return (_centered(rewards_PG, valid_PG) - delta).masked_fill(~valid_PG, 0.0)


def varied(rewards_PG: torch.Tensor, valid_PG: torch.Tensor) -> torch.Tensor:
    """Return whether each group has valid rewards that differ, compared exactly: [P] bool."""
    assert rewards_PG.shape == valid_PG.shape and rewards_PG.ndim == 2
    highest_P = rewards_PG.masked_fill(~valid_PG, -torch.inf).max(-1).values
    lowest_P = rewards_PG.masked_fill(~valid_PG, torch.inf).min(-1).values
    return highest_P > lowest_P


def _centered(rewards_PG: torch.Tensor, valid_PG: torch.Tensor) -> torch.Tensor:
    """Return R - mean over each group's valid responses; exactly 0 if their rewards are equal."""
    rewards_PG = rewards_PG.double()
    total_P1 = rewards_PG.masked_fill(~valid_PG, 0.0).sum(-1, keepdim=True)
    mean_P1 = total_P1 / valid_PG.sum(-1, keepdim=True).clamp(min=1)
    kept_PG = valid_PG & varied(rewards_PG, valid_PG)[:, None]
    return (rewards_PG - mean_P1).masked_fill(~kept_PG, 0.0)
