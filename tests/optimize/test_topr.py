"""TOPR by hand: positive responses have weight 1, negative ones their ratio, at most 1."""

import math
from typing import Any

import pytest
import torch

from mugrpo.optimize.advantages import shifted
from mugrpo.optimize.objectives import topr
from tests.cases import table

RATIOS = [
    [0.5, 0.8, 9.0],  # two tokens: product .4
    [2.0, 0.25, 3.0],  # 1.5
    [0.5, 0.1, 0.2],  # .01
    [4.0, 9.0, 9.0],  # one token
]
LOGPROBS = [[-1.0, -2.0, -9.0], [-0.5, -1.0, -2.0], [-1.0, -1.0, -3.0], [-0.25, -9.0, -9.0]]
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 0, 0]], dtype=torch.bool)


def of_rewards(
    rewards: list[float], baseline: float = 0.5, **options: Any
) -> tuple[torch.Tensor, ...]:
    """Return (token losses, weights on grad log pi, tapered), 0 on padding."""
    logprobs = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=True)
    behavior = logprobs.detach() - torch.tensor(RATIOS, dtype=torch.float64).log()
    rewards_PG = torch.tensor([rewards])
    advantages = shifted(rewards_PG, torch.ones_like(rewards_PG).bool(), baseline=baseline)[0]
    loss, metrics = topr.loss(logprobs, behavior, advantages, MASK, **options)
    (gradient,) = torch.autograd.grad((loss * MASK).sum(), logprobs)
    return (loss * MASK).detach(), -gradient, metrics["tapered_fraction"]


def same(actual: torch.Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=actual.dtype), rtol=1e-12, atol=1e-12
    )


SHORT = [[True, True, False], [False] * 3, [True] * 3, [False] * 3]  # tapered, if wrong


@table(
    ("rewards", "options", "weights", "tapered"),
    [
        ([1.0] * 4, {}, [0.5] * 4, None),  # A = .5, whatever the ratio
        ([0.5, 0.5, 0.5, 0.0], {}, [0, 0, 0, -0.5], None),  # nothing without advantage
        ([0.0] * 4, {}, [-0.2, -0.5, -0.005, -0.5], SHORT),  # A = -.5; .4, min(1.5, 1), .01, 1
        ([0.0, 1.0, 0.0, 0.0], {"negative_weight": 0.25}, [-0.05, 0.5, -0.00125, -0.125], SHORT),
    ],
)
def test_right_responses_have_weight_1_and_wrong_ones_their_product_of_ratios_at_most_1(
    rewards, options, weights, tapered
):
    """The losses are the weights times -log pi."""
    losses, found, where = of_rewards(rewards, **options)
    expected = torch.tensor(weights, dtype=torch.float64)[:, None] * MASK
    same(found, expected.tolist())
    same(losses, (-expected * torch.tensor(LOGPROBS).double()).tolist())
    assert where.tolist() == (tapered or [[False] * 3] * 4)


@table(
    ("taper", "weights"),
    [
        # products of .5, .8 | 2, .25, 3 | .5, .1, .2 | 4, up to each token; at most 1
        ("prefix", [[0.5, 0.4, 0], [1, 0.5, 1], [0.5, 0.05, 0.01], [1, 0, 0]]),
        ("smallest", [[0.5, 0.5, 0], [1, 0.25, 0.25], [0.5, 0.1, 0.1], [1, 0, 0]]),
        ("mean", [[0.4**0.5, 0.4**0.5, 0], [1, 1, 1], [0.01 ** (1 / 3)] * 3, [1, 0, 0]]),
        ("token", [[0.5, 0.8, 0], [1, 0.25, 1], [0.5, 0.1, 0.2], [1, 0, 0]]),
    ],
)
def test_other_tapers_by_hand(taper, weights):
    """A = -.5 for all."""
    _, actual, tapered = of_rewards([0.0] * 4, taper=taper)
    same(actual, (-0.5 * torch.tensor(weights, dtype=torch.float64)).tolist())
    assert tapered.tolist() == ((torch.tensor(weights) < 1) & MASK).tolist()
    _, positive, tapered = of_rewards([1.0] * 4, taper=taper)
    same(positive, (0.5 * MASK).tolist())
    assert not tapered.any()


def test_a_long_responses_product_underflows_to_0_and_never_overflows():
    """200 tokens at ratio e^-1 and e^1: w = e^-200 (0 in fp32) and 1."""
    logprobs = torch.full((2, 200), -2.0, requires_grad=True)
    behavior = torch.tensor([[-1.0], [-3.0]]).expand(2, 200)
    loss, _ = topr.loss(
        logprobs, behavior, torch.tensor([-0.5, -0.5]), torch.ones(2, 200, dtype=torch.bool)
    )
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    assert math.exp(-200) == pytest.approx(0)
    assert gradient[0].tolist() == [0.0] * 200
    assert gradient[1].tolist() == [0.5] * 200
