"""CISPO: a clipped ratio as a constant weight. (test_trl_equality compares it with TRL.)"""

import math

import torch

from mugrpo.optimize.objectives import cispo
from tests.cases import table
from tests.updates import assert_response, of_ratios

RATIOS = [0.05, 0.5, 1.0, 6.0]


# loss = -clip(r) A log pi, log pi = -1, -2, -3, -4; the weight on grad log pi is clip(r) A. Both
# hold for both signs of A, and beyond both bounds.
@table(
    ("advantage", "interval", "losses", "weights", "clipped"),
    [
        # clip(r) = .05, .5, 1, 5
        (2.0, (0.0, 5.0), [0.1, 2.0, 6.0, 40.0], [0.1, 1.0, 2.0, 10.0], [0, 0, 0, 1]),
        (-2.0, (0.0, 5.0), [-0.1, -2.0, -6.0, -40.0], [-0.1, -1.0, -2.0, -10.0], [0, 0, 0, 1]),
        # clip(r) = .2, .5, 1, 2
        (1.0, (0.2, 2.0), [0.2, 1.0, 3.0, 8.0], [0.2, 0.5, 1.0, 2.0], [1, 0, 0, 1]),
        (-1.0, (0.2, 2.0), [-0.2, -1.0, -3.0, -8.0], [-0.2, -0.5, -1.0, -2.0], [1, 0, 0, 1]),
        (0.0, (0.2, 2.0), [0.0] * 4, [0.0] * 4, [1, 0, 0, 1]),
    ],
)
def test_losses_and_weights_by_hand(advantage, interval, losses, weights, clipped):
    actual = of_ratios(cispo.loss, RATIOS, advantage, ratio_clip=interval)
    assert_response(actual, losses, weights, clipped)


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
