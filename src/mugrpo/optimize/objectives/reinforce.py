"""REINFORCE on stale responses, without a ratio. B responses, T tokens."""

import torch

from mugrpo.optimize.ratios import finite

METRICS = ()


def loss(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """REINFORCE: loss_t = -A log pi_t.

    With `advantage.name = "asymre"` this is AsymRE (arXiv 2506.20520). With a baseline below the
    mean reward (delta < 0) the policy improves without any correction; with delta >= 0 its support
    collapses.
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape and advantages_B.ndim == 1
    return -advantages_B[:, None] * finite(logprobs_BT), {}
