"""The penalty on moving away from a reference policy. B responses, T response tokens."""

import torch

from mugrpo.optimize.ratios import log_ratios

_HALF = 40.0  # bound on log ratios here: the product of two exponentials must be finite


def kl(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    reference_BT: torch.Tensor,
) -> torch.Tensor:
    """Return KL(policy || reference) per token, [B, T], by the corrected k3 estimator:

        r (e^d - d - 1),   d = log reference - log policy,   r = policy / behavior

    The mean of k3 = e^d - d - 1 over the policy's own samples is the divergence (Schulman,
    "Approximating KL divergence"), but its mean gradient is that of KL(reference || policy). With
    the ratio r, through which the gradient flows, mean and mean gradient are those of the
    divergence, on stale samples too. Equals TRL's per-token KL with `use_bias_correction_kl`. For
    responses of several tokens it is the divergence of the next token, under the prefixes that were
    sampled.
    """
    d_BT = log_ratios(reference_BT, logprobs_BT).clamp(-_HALF, _HALF)
    k3_BT = torch.expm1(d_BT) - d_BT
    ratio_BT = log_ratios(logprobs_BT, behavior_BT).clamp(-_HALF, _HALF).exp()
    flat_BT = d_BT.detach().abs() >= _HALF  # if d has no gradient, the ratio's alone would mislead
    return k3_BT * torch.where(flat_BT, ratio_BT.detach(), ratio_BT)
