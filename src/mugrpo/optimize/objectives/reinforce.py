"""REINFORCE on stale responses, without a ratio. B responses, T tokens."""

from __future__ import annotations

import torch

from mugrpo.optimize.ratios import finite

METRICS = ()


def loss(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """REINFORCE: loss_t = -A log pi_t.

    With `advantage.name = "asymre"` this is AsymRE (arXiv 2506.20520). With a baseline below the
    mean reward (delta < 0) the policy improves without any correction; with delta >= 0 its support
    collapses.
    """
    assert logprobs.shape == behavior_logprobs.shape == mask.shape and advantages.ndim == 1
    return -advantages[:, None] * finite(logprobs), {}
