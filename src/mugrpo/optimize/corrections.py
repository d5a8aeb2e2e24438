"""Weights that correct for an engine whose probabilities differ from the trainer's.

w = exp(trainer_BT - behavior_BT): the trainer and the engine compute these logprobs with the same
model weights. Later changes of the policy are in the importance ratio, not in w. All tensors are
without gradient. B responses, T response tokens.
"""

from typing import Literal

import torch

from mugrpo.optimize.ratios import clamped, log_ratios

Level = Literal["token", "sequence"]


def truncated(weights_BT: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Return w, clamped to the interval: truncated importance sampling.

    Equals TRL's "token_truncate" and "sequence_truncate".
    """
    return weights_BT.clamp(low, high)


def masked(weights_BT: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Return w if it is within the interval, else 0: masked importance sampling.

    Equals TRL's "token_mask" and "sequence_mask".
    """
    return weights_BT.masked_fill((weights_BT < low) | (weights_BT > high), 0.0)


def weights(
    trainer_BT: torch.Tensor, behavior_BT: torch.Tensor, mask_BT: torch.Tensor, level: Level
) -> torch.Tensor:
    """Return w [B, T] of each token, or of the whole response at each of its tokens."""
    log_weights_BT = log_ratios(trainer_BT, behavior_BT).detach()
    if level == "sequence":
        total_B1 = (log_weights_BT * mask_BT).sum(-1, keepdim=True)
        log_weights_BT = clamped(total_B1).expand_as(log_weights_BT)
    return log_weights_BT.exp()
