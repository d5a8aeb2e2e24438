"""GRPO's token losses: the clipping table and dual clip. (test_trl_equality has TRL's numbers.)"""

import pytest
import torch

from mugrpo.optimize.objectives import grpo
from tests.cases import table
from tests.updates import assert_response, of_ratios

NARROW, RELAXED = (0.8, 1.2), (0.0, 5.0)


# |A| = 2, so a weight rA is twice the ratio.
@table(
    ("advantage", "interval", "weights"),
    [
        (2.0, NARROW, [1.0, 2.0, 0.0, 0.0]),
        (2.0, RELAXED, [1.0, 2.0, 4.0, 0.0]),
        (-2.0, NARROW, [0.0, -2.0, -4.0, -12.0]),
        (-2.0, RELAXED, [-1.0, -2.0, -4.0, -12.0]),
    ],
)
def test_weight_on_grad_log_pi_in_every_cell_of_the_clipping_table(advantage, interval, weights):
    _, actual, _ = of_ratios(grpo.loss, [0.5, 1.0, 2.0, 6.0], advantage, ratio_clip=interval)
    assert actual == pytest.approx(weights, abs=1e-12)


@table(
    ("advantage", "interval", "losses"),
    [
        (2.0, NARROW, [-1.0, -2.0, -2.4, -2.4]),  # above 1.2: -1.2 x 2
        (2.0, RELAXED, [-1.0, -2.0, -4.0, -10.0]),  # above 5: -5 x 2
        (-2.0, NARROW, [1.6, 2.0, 4.0, 12.0]),  # below 0.8: 0.8 x 2; above 1.2 min takes r A
        (-2.0, RELAXED, [1.0, 2.0, 4.0, 12.0]),  # never clipped
    ],
)
def test_token_losses_of_the_clipping_table(advantage, interval, losses):
    actual, _, _ = of_ratios(grpo.loss, [0.5, 1.0, 2.0, 6.0], advantage, ratio_clip=interval)
    assert actual == pytest.approx(losses, abs=1e-12)


def test_dual_clip_bounds_the_loss_of_negative_tokens_and_ends_their_gradient():
    # A = -2, c = 3: loss = min(2 r, 6); beyond r = 3 it is flat.
    actual = of_ratios(grpo.loss, [0.5, 2.0, 4.0, 6.0], -2.0, ratio_clip=RELAXED, dual_clip=3.0)
    assert_response(actual, [1.0, 4.0, 6.0, 6.0], [-1.0, -4.0, 0.0, 0.0], [0, 0, 1, 1])


def test_clipped_fraction_marks_tokens_without_gradient_and_no_padding():
    ratios = torch.tensor([[0.5, 1.0, 2.0], [0.5, 1.0, 2.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    _, metrics = grpo.loss(
        ratios.log(), torch.zeros(3, 3), torch.tensor([1.0, -1.0, 1.0]), mask, ratio_clip=NARROW
    )
    assert metrics["clipped_fraction"].tolist() == [
        [False, False, True],  # A > 0: above 1.2
        [True, False, False],  # A < 0: below 0.8
        [True, False, False],  # the rest is padding
    ]
