"""Group-relative advantages. P problems, G responses per group."""

from __future__ import annotations

import torch


def group_advantages(
    rewards_PG: torch.Tensor, valid_PG: torch.Tensor, *, std: bool = True, eps: float = 1e-4
) -> torch.Tensor:
    """A = (R - mean) / (std + eps) over each group's valid responses, [P, G] in float64.

    DeepSeekMath, arXiv 2402.03300, section 4.1. The standard deviation is the unbiased one,
    as in TRL (which adds 1e-4; verl adds 1e-6). With `std=False`: A = R - mean (Dr. GRPO).

    Responses with `valid_PG` false (their reward failed) take no part in mean and std and get 0.
    A group whose valid rewards are all equal, compared exactly, or with fewer than two, is all 0.
    """
    assert rewards_PG.shape == valid_PG.shape and rewards_PG.ndim == 2
    advantages_PG = torch.zeros_like(rewards_PG, dtype=torch.float64)
    for row, (rewards, valid) in enumerate(zip(rewards_PG.double(), valid_PG, strict=True)):
        known = rewards[valid]
        if len(known) < 2 or known.max() == known.min():
            continue
        advantages = known - known.mean()
        advantages_PG[row, valid] = advantages / (known.std() + eps) if std else advantages
    return advantages_PG
