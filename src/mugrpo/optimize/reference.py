"""The penalty on leaving a reference policy. B responses, T response tokens."""

from __future__ import annotations

import torch

from mugrpo.optimize.ratios import log_ratios

_HALF = 40.0  # of the logs here, so that the product of two of their exponentials is finite


def kl(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    *,
    corrected: bool,
) -> torch.Tensor:
    """KL(policy || reference) a token, [B, T], by the k3 estimator:

        k3 = e^d - d - 1,   d = log reference - log policy

    Its mean over the policy's own samples is the divergence (Schulman, "Approximating KL
    divergence"), while its mean gradient is that of KL(reference || policy). Multiplied by the
    ratio to the behavior policy, with the gradient through it (`corrected`), both are the
    divergence's, on stale samples too. TRL's per-token KL is the one without; with
    its `use_bias_correction_kl` the one with. For responses of several tokens it is the divergence
    of the next token, under the prefixes that were sampled.
    """
    d_BT = log_ratios(reference_logprobs, logprobs).clamp(-_HALF, _HALF)
    k3_BT = torch.expm1(d_BT) - d_BT
    if not corrected:
        return k3_BT
    ratio_BT = log_ratios(logprobs, behavior_logprobs).clamp(-_HALF, _HALF).exp()
    flat_BT = d_BT.detach().abs() >= _HALF  # where d has no gradient the ratio alone would mislead
    return k3_BT * torch.where(flat_BT, ratio_BT.detach(), ratio_BT)
