"""Weights that correct for an engine whose probabilities differ from the trainer's.

w = exp(trainer_BT - behavior_BT): the trainer and the engine compute these logprobs with the same
model weights. Later changes of the policy are in the importance ratio, not in w. All tensors are
without gradient. B responses, T response tokens.
"""

from typing import Literal

import torch

from mugrpo.optimize.ratios import clamped, log_ratios

Level = Literal["token", "sequence"]


def truncated(
    trainer_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    interval: tuple[float, float],
    level: Level,
) -> torch.Tensor:
    """Return w, clamped to the interval: truncated importance sampling.

    Equals TRL's "token_truncate" and "sequence_truncate".
    """
    low, high = interval
    return _weights(trainer_BT, behavior_BT, mask_BT, level).clamp(low, high)


def masked(
    trainer_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    interval: tuple[float, float],
    level: Level,
) -> torch.Tensor:
    """Return w if it is within the interval, else 0: masked importance sampling.

    Equals TRL's "token_mask" and "sequence_mask".
    """
    low, high = interval
    weights_BT = _weights(trainer_BT, behavior_BT, mask_BT, level)
    return weights_BT.masked_fill((weights_BT < low) | (weights_BT > high), 0.0)


def _weights(
    trainer_BT: torch.Tensor, behavior_BT: torch.Tensor, mask_BT: torch.Tensor, level: Level
) -> torch.Tensor:
    log_weights_BT = log_ratios(trainer_BT, behavior_BT).detach()
    if level == "sequence":
        total_B1 = (log_weights_BT * mask_BT).sum(-1, keepdim=True)
        log_weights_BT = clamped(total_B1).expand_as(log_weights_BT)
    return log_weights_BT.exp()
