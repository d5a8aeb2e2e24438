"""Weights where the engine sampled from other probabilities than the trainer's model has.

w = exp(trainer_behavior_logprobs - behavior_logprobs): the same weights, through the trainer and
through the engine. Not the policy's movement since, which is the ratio's. [B, T], no gradient.
"""

from __future__ import annotations

from typing import Literal

import torch

from mugrpo.optimize.ratios import held, log_ratios

Level = Literal["token", "sequence"]


def truncated(
    trainer_behavior_logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    mask: torch.Tensor,
    *,
    cap: float,
    level: Level,
) -> torch.Tensor:
    """min(w, cap): truncated importance sampling. TRL's "token_truncate", "sequence_truncate",
    without a lower bound."""
    return _weights(trainer_behavior_logprobs, behavior_logprobs, mask, level).clamp(max=cap)


def masked(
    trainer_behavior_logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    mask: torch.Tensor,
    *,
    interval: tuple[float, float],
    level: Level,
) -> torch.Tensor:
    """w within the interval, else 0: masked importance sampling. TRL's "token_mask",
    "sequence_mask"."""
    low, high = interval
    weights_BT = _weights(trainer_behavior_logprobs, behavior_logprobs, mask, level)
    return weights_BT.masked_fill((weights_BT < low) | (weights_BT > high), 0.0)


def _weights(
    trainer: torch.Tensor, behavior: torch.Tensor, mask: torch.Tensor, level: Level
) -> torch.Tensor:
    log_weights_BT = log_ratios(trainer, behavior).detach()
    if level == "sequence":
        total_B1 = (log_weights_BT * mask).sum(-1, keepdim=True)
        log_weights_BT = held(total_B1).expand_as(log_weights_BT)
    return log_weights_BT.exp()
