"""M2PO: the masking of its pre-pass, its loss, and why the pre-pass sees the whole update."""

from unittest.mock import patch

import torch

from mugrpo.optimize.objectives import m2po
from tests.cases import table


def kept(
    log_ratios: list[list[float]] | torch.Tensor,
    advantages: list[float] | torch.Tensor,
    limit: float,
    mask: torch.Tensor | None = None,
) -> list[list[bool]]:
    log_ratio_BT = torch.as_tensor(log_ratios, dtype=torch.float64)
    mask_BT = torch.ones(log_ratio_BT.shape, dtype=torch.bool) if mask is None else mask
    advantages_B = torch.as_tensor(advantages, dtype=torch.float64)
    with patch.object(m2po, "_LIMIT", limit):
        result = m2po.prepass(log_ratio_BT, torch.zeros_like(log_ratio_BT), advantages_B, mask_BT)
    return result["keep"].tolist()


# A = +1: 1/2, 1/4, 1/16 move away, -1 moves back. A = -1: -1/2, -1/8 move away, 3/4 moves back.
# Squares of T in order: .25, .0625, .00390625 | .25, .015625; their sum is .58203125.
@table(
    ("limit", "expected"),
    [
        (0.12, ["xxxx", "xxx"]),  # mean .1164
        (0.1, ["xxxx", ".xx"]),  # the later of the two .25 goes: .33203125 / 4 = .0830
        (0.03, [".xxx", ".xx"]),  # the other .25: .08203125 / 3 = .0273
        (0.02, ["..xx", ".xx"]),  # .0625: .01953125 / 2 = .0098
        (0.005, ["..xx", ".x."]),  # .015625: .0039
        (0.003, ["..x.", ".x."]),  # .0039 alone is over the limit: all of T goes
    ],
)
def test_largest_squares_go_until_the_mean_is_within_the_limit(limit, expected):
    log_ratios = [[0.5, 0.25, -1.0, 0.0625], [-0.5, 0.75, -0.125, 0.0]]
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    actual = kept(log_ratios, [1.0, -1.0], limit, mask)
    assert actual == [
        [mark == "x" for mark in expected[0]],
        [mark == "x" for mark in expected[1]] + [False],
    ]


def literal_prepass(
    log_ratio: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, limit: float
) -> tuple[list[list[bool]], float]:
    """Follow the definition literally; return what is kept and the final mean over T."""
    squares = {
        (b, t): log_ratio[b, t].item() ** 2
        for b, t in mask.nonzero().tolist()
        if (advantages[b] > 0 and log_ratio[b, t] > 0)
        or (advantages[b] < 0 and log_ratio[b, t] < 0)
    }
    keep = mask.clone()
    while squares and sum(squares.values()) / len(squares) > limit:
        largest = max(squares, key=lambda place: (squares[place], place))
        keep[largest] = False
        del squares[largest]
    return keep.tolist(), sum(squares.values()) / max(1, len(squares))


@table("limit", [0.01, 0.04, 0.25, 2.0])
def test_prepass_equals_the_literal_while_loop(limit):
    """Log ratios are multiples of 1/8, so the arithmetic is exact and ties are common."""
    masked = 0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        log_ratio = torch.randint(-8, 9, (4, 6), generator=generator).double() / 8
        advantages = torch.randint(-1, 2, (4,), generator=generator).double()
        mask = torch.rand(4, 6, generator=generator) < 0.8
        expected, mean = literal_prepass(log_ratio, advantages, mask, limit)
        actual = kept(log_ratio, advantages, limit, mask)
        assert actual == expected
        assert mean <= limit
        masked += (mask & ~torch.tensor(actual)).sum().item()
    assert (masked > 0) == (limit < 1)  # squares are at most 1


def test_loss_values_by_hand():
    # -keep r A, no clip: A = 2: -2 x .5, -2 x 9; A = -1: dropped, 3
    loss, metrics = m2po.loss(
        torch.tensor([[0.5, 9.0], [0.1, 3.0]]).log(),
        torch.zeros(2, 2),
        torch.tensor([2.0, -1.0]),
        torch.tensor([[True, True], [True, True]]),
        keep=torch.tensor([[True, True], [False, True]]),
    )
    torch.testing.assert_close(loss, torch.tensor([[-1.0, -18.0], [0.0, 3.0]]))
    assert metrics["masked_fraction"].tolist() == [[False, False], [True, False]]
