"""The penalty on moving away from a reference policy. B responses, T response tokens."""

from __future__ import annotations

import torch

from mugrpo.optimize.ratios import log_ratios

_HALF = 40.0  # bound on log ratios here: the product of two exponentials must be finite


def kl(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    *,
    corrected: bool,
) -> torch.Tensor:
    """Return KL(policy || reference) per token, [B, T], by the k3 estimator:

        k3 = e^d - d - 1,   d = log reference - log policy

    The mean of k3 over the policy's own samples is the divergence (Schulman, "Approximating KL
    divergence"), but its mean gradient is that of KL(reference || policy). With `corrected`, k3 is
    multiplied by the ratio to the behavior policy, with the gradient through the ratio. Then mean
    and mean gradient are those of the divergence, on stale samples too. Uncorrected, this equals
    TRL's per-token KL; corrected, TRL's with `use_bias_correction_kl`. For responses of several
    tokens it is the divergence of the next token, under the prefixes that were sampled.
    """
    d_BT = log_ratios(reference_logprobs, logprobs).clamp(-_HALF, _HALF)
    k3_BT = torch.expm1(d_BT) - d_BT
    if not corrected:
        return k3_BT
    ratio_BT = log_ratios(logprobs, behavior_logprobs).clamp(-_HALF, _HALF).exp()
    flat_BT = d_BT.detach().abs() >= _HALF  # if d has no gradient, the ratio's alone would mislead
    return k3_BT * torch.where(flat_BT, ratio_BT.detach(), ratio_BT)
