"""Importance ratios, and what is computed from them: masks, corrections, a KL penalty.

Suffixes: B responses, T response tokens.
"""

from __future__ import annotations

from typing import Literal

import torch

LARGEST = 80.0  # bound on log ratios: e^80 is finite in fp32, so 0 x e^80 is 0
_LEAST = -1e4  # a log-probability below this is raised to it


def log_ratios(logprobs_BT: torch.Tensor, behavior_BT: torch.Tensor) -> torch.Tensor:
    """Return log(policy / behavior) per token, [B, T], clamped to +-80 and without gradient beyond.

    A token of probability 0 has a ratio of e^-80 if only the policy gives it that probability, e^80
    if only the behavior policy does, and 1 if both do.
    """
    assert logprobs_BT.shape == behavior_BT.shape and logprobs_BT.ndim == 2
    both_BT = (logprobs_BT == -torch.inf) & (behavior_BT == -torch.inf)
    return clamped(torch.where(both_BT, 0.0, logprobs_BT - behavior_BT))


def clamped(log_ratios_BT: torch.Tensor) -> torch.Tensor:
    """Return the log ratios clamped to +-80."""
    return log_ratios_BT.clamp(-LARGEST, LARGEST)


def masked_mean(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean over each response's tokens, [B, 1]."""
    return (values_BT * mask_BT).sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)


def sequence_log_ratios(log_ratios_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean of each response's log ratios (GSPO), at each of its tokens, [B, T].

    The value is the response's, but the gradient is each token's own (GSPO-token, arXiv
    2507.18071). Summed over a response it is the gradient of the mean, times the length.
    """
    mean_B1 = masked_mean(log_ratios_BT, mask_BT).detach()
    return mean_B1 + (log_ratios_BT - log_ratios_BT.detach())


def ppo_min(
    ratio_BT: torch.Tensor,
    advantages_B1: torch.Tensor,
    low: float | torch.Tensor,
    high: float | torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return min(r A, clip(r, low, high) A) and the clipped tokens, both [B, T].

    A token is clipped if the clip removes its gradient.
    """
    clipped_BT = ((advantages_B1 > 0) & (ratio_BT > high)) | (
        (advantages_B1 < 0) & (ratio_BT < low)
    )
    held_BT = torch.maximum(torch.minimum(ratio_BT, _like(high, ratio_BT)), _like(low, ratio_BT))
    surrogate_BT = torch.where(clipped_BT, held_BT.detach(), ratio_BT) * advantages_B1
    return surrogate_BT, clipped_BT


def _like(bound: float | torch.Tensor, ratio_BT: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(bound, dtype=ratio_BT.dtype, device=ratio_BT.device)


def finite(logprobs_BT: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities clamped to at least -1e4. No loss is infinite then."""
    return logprobs_BT.clamp(min=_LEAST)


# Masks that remove tokens or whole responses from an update.
#
# Each function returns [B, T] bool, true for tokens whose policy term is removed. The update's
# denominator still counts removed tokens, so that no other token gains weight.


Scope = Literal["suffix", "trigger", "post_trigger", "from_trigger", "response"]


def negative_advantage_veto(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    threshold: float,
    scope: Scope,
) -> torch.Tensor:
    """Return the tokens that Mu-GRPO's negative-advantage veto (arXiv 2605.17570) removes:

        T   = { t : A < 0, r_t < threshold }  trigger tokens
        tau = min T                           no trigger, no veto

    Scope "suffix" removes H = { t > tau : r_t >= threshold }, "trigger" T, "post_trigger" S = all
    t > tau, "response" all t, as on the authors' project page, which writes kappa for tau;
    "from_trigger", all t >= tau, is ours. Responses with a positive advantage are never touched.
    That tau is the first trigger is inferred, and no threshold is stated: the trigger shown there
    has a ratio below 1e-4. `advantages` is [B], all other tensors [B, T].
    """
    assert logprobs.shape == behavior_logprobs.shape == mask.shape and advantages.ndim == 1
    ratio_BT = log_ratios(logprobs.detach(), behavior_logprobs).exp()
    trigger_BT = (advantages[:, None] < 0) & (ratio_BT < threshold) & mask
    reached_BT = trigger_BT.cumsum(-1) > 0  # t >= tau
    after_BT = (trigger_BT.cumsum(-1) - trigger_BT.int()) > 0  # t > tau
    scopes = {
        "suffix": after_BT & ~trigger_BT,
        "trigger": trigger_BT,
        "post_trigger": after_BT,
        "from_trigger": reached_BT,
        "response": trigger_BT.any(-1, keepdim=True).expand_as(mask),
    }
    return scopes[scope] & mask


def off_policy(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    delta: float,
) -> torch.Tensor:
    """Return the tokens that DeepSeek-V3.2's sequence mask (arXiv 2512.02556) removes:

        all tokens of a response with A < 0 and mean over t of log(beta_t / pi_t) > delta

    Equals the inverse of TRL's `get_off_policy_mask`, which marks what to keep.
    """
    assert logprobs.shape == behavior_logprobs.shape == mask.shape and advantages.ndim == 1
    moved_B1 = masked_mean(-log_ratios(logprobs.detach(), behavior_logprobs), mask)
    return (advantages[:, None] < 0) & (moved_B1 > delta) & mask


# Weights that correct for an engine whose probabilities differ from the trainer's.
#
# w = exp(trainer_behavior_logprobs - behavior_logprobs): the trainer and the engine compute these
# logprobs with the same model weights. Later changes of the policy are in the importance ratio, not
# in w. All tensors are [B, T], without gradient.


Level = Literal["token", "sequence"]


def truncated(
    trainer_behavior_logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    mask: torch.Tensor,
    *,
    interval: tuple[float, float],
    level: Level,
) -> torch.Tensor:
    """Return w, clamped to the interval: truncated importance sampling.

    Equals TRL's "token_truncate" and "sequence_truncate".
    """
    low, high = interval
    return _weights(trainer_behavior_logprobs, behavior_logprobs, mask, level).clamp(low, high)


def masked(
    trainer_behavior_logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    mask: torch.Tensor,
    *,
    interval: tuple[float, float],
    level: Level,
) -> torch.Tensor:
    """Return w if it is within the interval, else 0: masked importance sampling.

    Equals TRL's "token_mask" and "sequence_mask".
    """
    low, high = interval
    weights_BT = _weights(trainer_behavior_logprobs, behavior_logprobs, mask, level)
    return weights_BT.masked_fill((weights_BT < low) | (weights_BT > high), 0.0)


def _weights(
    trainer: torch.Tensor, behavior: torch.Tensor, mask: torch.Tensor, level: Level
) -> torch.Tensor:
    log_weights_BT = log_ratios(trainer, behavior).detach()
    if level == "sequence":
        total_B1 = (log_weights_BT * mask).sum(-1, keepdim=True)
        log_weights_BT = clamped(total_B1).expand_as(log_weights_BT)
    return log_weights_BT.exp()


_HALF = 40.0  # bound on log ratios here: the product of two exponentials must be finite


def kl(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
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
    d_BT = log_ratios(reference_logprobs, logprobs).clamp(-_HALF, _HALF)
    k3_BT = torch.expm1(d_BT) - d_BT
    ratio_BT = log_ratios(logprobs, behavior_logprobs).clamp(-_HALF, _HALF).exp()
    flat_BT = d_BT.detach().abs() >= _HALF  # if d has no gradient, the ratio's alone would mislead
    return k3_BT * torch.where(flat_BT, ratio_BT.detach(), ratio_BT)
