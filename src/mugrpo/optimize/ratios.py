"""Importance ratios and their clips. B responses, T response tokens."""

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
    if isinstance(bound, torch.Tensor):
        return bound.to(ratio_BT.dtype)
    return ratio_BT.new_full((), bound)  # made on its device: a number sent there would wait for it


def finite(logprobs_BT: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities clamped to at least -1e4. No loss is infinite then."""
    return logprobs_BT.clamp(min=_LEAST)
