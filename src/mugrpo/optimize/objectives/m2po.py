"""M2PO: a trust region by the second moment of the log ratio. B responses, T tokens."""

import torch

from mugrpo.optimize.ratios import log_ratios

METRICS = ("masked_fraction",)

_LIMIT = 0.04  # of arXiv 2510.01161


def prepass(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Return the tokens that M2PO keeps, among all responses of an update: {"keep": [B, T] bool}.

        T = tokens with (A > 0, r > 1) or (A < 0, r < 1)
        while mean over T of (log r)^2 > limit: mask the token with the largest, drop it from T

    This leaves the longest prefix of the ascending (log r)^2 whose mean is within the limit, so the
    code computes that prefix. Among equal values the later token is masked first.
    """
    log_ratio_BT = log_ratios(logprobs_BT, behavior_BT)
    away_BT = (advantages_B[:, None] * log_ratio_BT > 0) & mask_BT
    squares, order = (log_ratio_BT[away_BT].double() ** 2).sort(stable=True)
    running_mean = squares.cumsum(0) / torch.arange(1, len(squares) + 1, device=squares.device)
    kept = torch.zeros_like(order, dtype=torch.bool)
    kept[order] = running_mean <= _LIMIT  # ascending squares: a prefix
    return {"keep": mask_BT.clone().masked_scatter(away_BT, kept)}


def loss(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    keep: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """M2PO as its paper (arXiv 2510.01161) defines it: loss_t = -keep_t r_t A, without a clip.

    Equals GRPO with the interval [0, inf) if the limit is never exceeded. The released code does
    something else.
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape == keep.shape
    ratio_BT = log_ratios(logprobs_BT, behavior_BT).exp()
    loss_BT = -(ratio_BT * advantages_B[:, None]).masked_fill(~keep, 0.0)
    return loss_BT, {"masked_fraction": mask_BT & ~keep}
