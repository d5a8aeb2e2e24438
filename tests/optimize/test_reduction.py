"""The three reductions by hand, and that the cut into micro-batches does not affect them."""

import pytest
import torch

from mugrpo.optimize.reduction import denominator, reduced_loss
from tests.cases import table

REDUCTIONS = ("token_mean", "sequence_mean", "constant")
LOSS = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, False, False]])


@table(
    ("reduction", "divisor", "expected"),
    [
        ("token_mean", 4, 16 / 4),  # (1 + 2 + 3 + 10) / 4 tokens
        ("sequence_mean", 2, (2 + 10) / 2),  # means of the responses 2 and 10
        ("constant", 10, 16 / 10),  # 2 responses x 5
    ],
)
def test_reductions_by_hand(reduction, divisor, expected):
    assert divisor == denominator(reduction, tokens=4, responses=2, max_new_tokens=5)
    assert reduced_loss(LOSS, MASK, reduction, divisor).item() == pytest.approx(expected)


@table(
    ("reduction", "weights"),
    [
        ("token_mean", [[1 / 4, 1 / 4, 1 / 4], [1 / 4, 0, 0]]),
        ("sequence_mean", [[1 / 6, 1 / 6, 1 / 6], [1 / 2, 0, 0]]),
        ("constant", [[1 / 10, 1 / 10, 1 / 10], [1 / 10, 0, 0]]),
    ],
)
def test_weight_of_each_token(reduction, weights):
    loss = LOSS.clone().requires_grad_()
    divisor = denominator(reduction, tokens=4, responses=2, max_new_tokens=5)
    (gradient,) = torch.autograd.grad(reduced_loss(loss, MASK, reduction, divisor), loss)
    torch.testing.assert_close(gradient, torch.tensor(weights, dtype=torch.float64))


@table("reduction", REDUCTIONS)
def test_parts_of_an_update_add_up_to_its_whole(reduction):
    """Any cut, in any order, with less padding if a part is shorter."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 1, 3, 2, 5, 4])
    loss = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    mask = torch.arange(5) < lengths[:, None]
    divisor = denominator(reduction, tokens=20, responses=6, max_new_tokens=5)
    whole = reduced_loss(loss, mask, reduction, divisor)
    for cut in ([[0, 1, 2], [3, 4, 5]], [[4], [1], [0, 3], [2, 5]], [[1, 3], [2, 5, 0, 4]]):
        parts = []
        for rows in cut:
            width = int(lengths[rows].max())
            parts.append(reduced_loss(loss[rows, :width], mask[rows, :width], reduction, divisor))
        torch.testing.assert_close(sum(parts), whole, rtol=1e-13, atol=1e-15)
