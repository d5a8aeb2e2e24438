"""TOPR: tapered off-policy REINFORCE, and its relatives. B responses, T tokens."""

from typing import Literal

import torch

from mugrpo.optimize.ratios import finite, log_ratios, masked_mean

METRICS = ("tapered_fraction",)

Taper = Literal["response", "prefix", "smallest", "mean", "token"]


def loss(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    taper: Taper = "response",
    negative_weight: float = 1.0,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """REINFORCE with negative responses weighted by how likely they still are, but at most by 1:

        loss_t = -w_t A log pi_t,   w_t = 1 if A > 0, else n sg[min(q_t, 1)]

    By default n, `negative_weight`, is 1, and q_t is the ratio of the whole response, prod_j r_j:
    TOPR (arXiv 2503.14286) in its canonical form. With rewards of 0 and 1, its wrong responses need
    an advantage below 0, for which the paper's preset shifts the reward; group advantages do as
    well. The product vanishes over long responses that have drifted. The other tapers have ratios
    of other methods, which do not, or do so later:

        prefix     prod over j <= t of r_j      by its prefix and itself (CTPO, 2605.07331)
        smallest   min over j <= t of r_j       by its least likely token (MinPRO, 2601.22718)
        mean       exp(mean over j of log r_j)  by the response's mean (GSPO, 2507.18071)
        token      r_t                          CISPO's weight (2506.13585) on the interval [0, 1]

    Equals REINFORCE if every ratio and n are 1; all tapers are the same for responses of one token.

    Return the token losses, to be minimized, and the tapered tokens as a metric, all [B, T].
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape and advantages_B.ndim == 1
    advantages_B1 = advantages_B[:, None]
    negative_BT = (advantages_B1 < 0) & mask_BT
    log_ratio_BT = log_ratios(logprobs_BT, behavior_BT).detach() * mask_BT
    taper_BT = _likelihoods(log_ratio_BT, mask_BT, taper).clamp(max=0).exp()
    weight_BT = (negative_weight * taper_BT).masked_fill(~negative_BT, 1.0)
    surrogate_BT = weight_BT * advantages_B1 * finite(logprobs_BT)
    return -surrogate_BT, {"tapered_fraction": (taper_BT < 1) & negative_BT}


def _likelihoods(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, taper: Taper) -> torch.Tensor:
    """Return log q_t, [B, T], from log ratios that are 0 outside of `mask_BT`."""
    if taper == "token":
        return log_ratio_BT
    if taper == "prefix":
        return log_ratio_BT.cumsum(-1)
    if taper == "smallest":
        return log_ratio_BT.cummin(-1).values
    if taper == "mean":
        return masked_mean(log_ratio_BT, mask_BT).expand_as(mask_BT)
    return log_ratio_BT.sum(-1, keepdim=True).expand_as(mask_BT)
