"""VESPO: a smooth weight on the ratio of the response. B responses, T tokens."""

import math

import torch

from mugrpo.optimize.ratios import finite, log_ratios

METRICS = ("sequence_weight",)
_POSITIVE, _NEGATIVE = (2.0, 3.0), (3.0, 2.0)  # (k, l), the paper's and TRL's
_LEAST, _GREATEST = math.log(1e-8), 20.0  # bounds on the log ratio of a response, as in TRL


def loss(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """REINFORCE with a gamma-shaped weight on the ratio of the response (arXiv 2602.10693):

        loss_t = -sg[phi(w)] A log pi_t,   phi(w) = e^l w^k e^(-l w),   w = prod_t r_t

    (k, l) is (2, 3) if A >= 0, else (3, 2). phi(1) = 1, and phi falls to 0 on both sides of
    its peak at k / l. Equals TRL's loss_type "vespo", which also bounds the log ratio of a token to
    +-20 and that of a response to [log 1e-8, 20].
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape and advantages_B.ndim == 1
    log_ratio_BT = log_ratios(logprobs_BT, behavior_BT).detach().clamp(-_GREATEST, _GREATEST)
    log_w_B1 = (log_ratio_BT * mask_BT).sum(-1, keepdim=True).clamp(_LEAST, _GREATEST)
    advantages_B1 = advantages_B[:, None]
    k_B1, l_B1 = (
        torch.where(advantages_B1 >= 0, above, below)
        for above, below in zip(_POSITIVE, _NEGATIVE, strict=True)
    )
    phi_B1 = (l_B1 + k_B1 * log_w_B1 - l_B1 * log_w_B1.exp()).exp()
    loss_BT = -phi_B1 * advantages_B1 * finite(logprobs_BT)
    return loss_BT, {"sequence_weight": phi_B1 * mask_BT}
