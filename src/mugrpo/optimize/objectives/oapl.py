"""OAPL: regression of the response's log ratio on its advantage. B responses, T tokens."""

from __future__ import annotations

import torch

from mugrpo.optimize.ratios import log_ratios

METRICS = ("residual",)
NEEDS_ZERO_ADVANTAGES = True  # such a response is pulled back to the behavior policy


def loss(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    beta: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The squared distance of a response's log ratio from its advantage (arXiv 2602.19362):

        loss_t = (beta sum_j log(pi_j / behavior_j) - A)^2,   the same at each of its tokens

    A = R - V with V = beta_1 log mean exp(R / beta_1) over the group (`advantage.name = "soft"`),
    beta is the paper's beta_2. The least loss is at pi ~ behavior exp(A / beta), so further updates
    cannot overrun it. `reduction = "sequence_mean"` gives the paper's mean over responses.
    """
    assert logprobs.shape == behavior_logprobs.shape == mask.shape and advantages.ndim == 1
    log_ratio_B1 = (log_ratios(logprobs, behavior_logprobs) * mask).sum(-1, keepdim=True)
    residual_B1 = beta * log_ratio_B1 - advantages[:, None]
    residual_BT = residual_B1.expand_as(mask)
    return residual_BT**2, {"residual": residual_BT.detach() * mask}
