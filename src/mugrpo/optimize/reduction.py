"""Reduce token losses to one number, with the update's denominator. B responses, T tokens."""

from typing import Literal

import torch

Reduction = Literal["token_mean", "sequence_mean", "constant"]


def denominator(reduction: Reduction, *, tokens: int, responses: int, max_new_tokens: int) -> int:
    """Return the number that an update's summed loss is divided by.

    It counts every response of the update, even if masked, vetoed or not computed. Therefore
    neither a mask nor the cut into micro-batches changes the weight of the other tokens. `tokens`
    and `responses` are those of the update, and only tokens that the policy sampled are counted;
    `max_new_tokens` is the config's.
    """
    return {
        "token_mean": tokens,
        "sequence_mean": responses,
        "constant": responses * max_new_tokens,
    }[reduction]


def reduced_loss(
    loss_BT: torch.Tensor, mask_BT: torch.Tensor, reduction: Reduction, denominator: int
) -> torch.Tensor:
    """Return what these responses contribute to an update's loss, a scalar.

    token_mean and constant: sum of the token losses / denominator. sequence_mean: sum of each
    response's mean token loss / denominator. The contributions of all micro-batches add up to the
    update's loss. `loss_BT` and `mask_BT` (bool, true at response tokens) are [B, T].
    """
    assert loss_BT.shape == mask_BT.shape and loss_BT.ndim == 2
    per_response_B = (loss_BT * mask_BT).sum(-1)
    if reduction == "sequence_mean":
        per_response_B = per_response_B / mask_BT.sum(-1).clamp(min=1)
    return per_response_B.sum() / denominator
