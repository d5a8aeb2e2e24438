"""Controls of studies/harm.toml: as many tokens are left out as the veto would, but others.

Relaxed GRPO, in which the tokens are drawn at random among those of responses with a negative
(`among` < 0) or a positive advantage.
"""

from __future__ import annotations

import torch

from mugrpo.optimize.objectives import grpo
from mugrpo.optimize.ratios import negative_advantage_veto

METRICS = ("clipped_fraction", "vetoed_fraction")


def loss(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    low: float,
    high: float,
    threshold: float,
    among: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """See `mugrpo.optimize.objectives`; what is left out here is counted as `vetoed_fraction`."""
    of_tokens = (logprobs, behavior_logprobs, advantages, mask)
    loss_BT, metrics = grpo.loss(*of_tokens, ratio_clip=(low, high))
    count = int(negative_advantage_veto(*of_tokens, threshold=threshold, scope="suffix").sum())
    drawn_BT = at_random(mask & (advantages[:, None] * among > 0), count)
    kept = {name: values & ~drawn_BT for name, values in metrics.items()}
    return loss_BT.masked_fill(drawn_BT, 0.0), {**kept, "vetoed_fraction": drawn_BT}


def at_random(among: torch.Tensor, count: int) -> torch.Tensor:
    """`count` of the true places of `among`, or all of them where there are fewer."""
    order = torch.rand(among.shape, device=among.device).masked_fill(~among, -1.0).flatten()
    chosen = torch.zeros_like(order, dtype=torch.bool)
    chosen[order.topk(min(count, int(among.sum()))).indices] = True
    return chosen.view(among.shape)
