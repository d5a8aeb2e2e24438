"""TOPR: tapered off-policy REINFORCE. B responses, T tokens."""

from __future__ import annotations

import torch

from mugrpo.optimize.ratios import finite, log_ratios

METRICS = ("tapered_fraction",)


def loss(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """REINFORCE with negative responses weighted by their ratio, but at most by 1:

        loss_t = -w A log pi_t,   w = 1 if A > 0, else sg[min(prod_t r_t, 1)]

    This is TOPR (arXiv 2503.14286) in its canonical form. With rewards of 0 and 1, wrong responses
    need an advantage below 0: `advantage.name = "shifted"`. Equals REINFORCE if every ratio is 1.
    """
    assert logprobs.shape == behavior_logprobs.shape == mask.shape and advantages.ndim == 1
    log_product_B1 = (log_ratios(logprobs, behavior_logprobs) * mask).sum(-1, keepdim=True)
    advantages_B1 = advantages[:, None]
    taper_B1 = log_product_B1.detach().clamp(max=0).exp()
    weight_B1 = torch.where(advantages_B1 > 0, torch.ones_like(taper_B1), taper_B1)
    tapered_BT = (weight_B1 < 1) & mask
    return -weight_B1 * advantages_B1 * finite(logprobs), {"tapered_fraction": tapered_BT}
