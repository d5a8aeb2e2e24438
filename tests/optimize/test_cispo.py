"""CISPO: a clipped ratio as a constant weight. (test_trl_equality compares it with TRL.)"""

from __future__ import annotations

import math

import pytest
import torch

from mugrpo.optimize.objectives import cispo

RATIOS = [0.05, 0.5, 1.0, 6.0]
LOGPROBS = [-1.0, -2.0, -0.5, -0.1]  # of the policy


def of_ratios(
    advantage: float, interval: tuple[float, float]
) -> tuple[list[float], list[float], list[bool]]:
    """(token losses, weights on grad log pi, clipped) of one response of RATIOS."""
    logprobs = torch.tensor([LOGPROBS], dtype=torch.float64, requires_grad=True)
    behavior = logprobs.detach() - torch.tensor([RATIOS], dtype=torch.float64).log()
    loss, metrics = cispo.loss(
        logprobs,
        behavior,
        torch.tensor([advantage], dtype=torch.float64),
        torch.ones(1, 4, dtype=torch.bool),
        ratio_clip=interval,
    )
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    return loss[0].tolist(), (-gradient[0]).tolist(), metrics["clipped_fraction"][0].tolist()


# loss = -clip(r) A log pi; the weight on grad log pi is clip(r) A. Both hold for both signs of A,
# and beyond both bounds.
@pytest.mark.parametrize(
    ("advantage", "interval", "losses", "weights", "clipped"),
    [
        # clip(r) = .05, .5, 1, 5
        (2.0, (0.0, 5.0), [0.1, 2.0, 1.0, 1.0], [0.1, 1.0, 2.0, 10.0], [0, 0, 0, 1]),
        (-2.0, (0.0, 5.0), [-0.1, -2.0, -1.0, -1.0], [-0.1, -1.0, -2.0, -10.0], [0, 0, 0, 1]),
        # clip(r) = .2, .5, 1, 2
        (1.0, (0.2, 2.0), [0.2, 1.0, 0.5, 0.2], [0.2, 0.5, 1.0, 2.0], [1, 0, 0, 1]),
        (-1.0, (0.2, 2.0), [-0.2, -1.0, -0.5, -0.2], [-0.2, -0.5, -1.0, -2.0], [1, 0, 0, 1]),
        (0.0, (0.2, 2.0), [0.0] * 4, [0.0] * 4, [1, 0, 0, 1]),
    ],
)
def test_losses_and_weights_by_hand(advantage, interval, losses, weights, clipped):
    actual_losses, actual_weights, actual_clipped = of_ratios(advantage, interval)
    assert actual_losses == pytest.approx(losses, abs=1e-12)
    assert actual_weights == pytest.approx(weights, abs=1e-12)
    assert actual_clipped == [bool(c) for c in clipped]


def test_padding_is_not_counted_as_clipped():
    mask = torch.tensor([[True, False]])
    _, metrics = cispo.loss(
        torch.zeros(1, 2),
        torch.full((1, 2), -math.log(9.0)),
        torch.ones(1),
        mask,
        ratio_clip=(0.0, 5.0),
    )
    assert metrics["clipped_fraction"].tolist() == [[True, False]]
