"""The three reductions by hand. (Their cut is in test_objective_properties.)"""

import pytest
import torch

from mugrpo.optimize.reduction import denominator, reduced_loss
from tests.cases import table

LOSS = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, False, False]])


@table(
    ("reduction", "divisor", "expected", "weights"),
    [
        ("token_mean", 4, 16 / 4, [[1 / 4] * 3, [1 / 4, 0, 0]]),  # (1 + 2 + 3 + 10) / 4 tokens
        ("sequence_mean", 2, (2 + 10) / 2, [[1 / 6] * 3, [1 / 2, 0, 0]]),  # means 2 and 10
        ("constant", 10, 16 / 10, [[1 / 10] * 3, [1 / 10, 0, 0]]),  # 2 responses x 5
    ],
)
def test_values_and_weights_of_each_token_by_hand(reduction, divisor, expected, weights):
    loss = LOSS.clone().requires_grad_()
    assert divisor == denominator(reduction, tokens=4, responses=2, max_new_tokens=5)
    reduced = reduced_loss(loss, MASK, reduction, divisor)
    assert reduced.item() == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(reduced, loss)
    torch.testing.assert_close(gradient, torch.tensor(weights, dtype=torch.float64))
