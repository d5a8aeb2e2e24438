"""MinPRO and CTPO by hand: weights computed from a token's prefix."""

import math

import pytest
import torch

from mugrpo.optimize.objectives import ctpo, minpro
from tests.cases import table
from tests.updates import assert_response, of_ratios

OPEN = (0.0, 1e9)


# MinPRO: w_t = r_t sg[min_{j<t} r_j], w_1 = r_1; the gradient is the token's own
@table(
    ("ratios", "w"),
    [
        ([0.5, 0.9, 2.0], [0.5, 0.45, 1.0]),  # minima before: -, .5, .5
        ([0.9, 0.5, 2.0], [0.9, 0.45, 1.0]),  # -, .9, .5
        ([2.0, 3.0, 0.5], [2.0, 6.0, 1.0]),  # -, 2, 2: the minimum is not capped at 1
        ([1.0, 1.0, 0.5], [1.0, 1.0, 0.5]),  # the minimum excludes the token's own ratio
    ],
)
def test_minpro_weights_by_hand(ratios, w):
    for advantage in (2.0, -2.0):
        expected = [advantage * x for x in w]
        actual = of_ratios(minpro.loss, ratios, advantage, ratio_clip=OPEN)
        assert_response(actual, [-x for x in expected], expected, [0, 0, 0])


def test_minpro_clips_the_product():
    # w = .5, .45, 1.0 in [.8, 1.2]
    actual = of_ratios(minpro.loss, [0.5, 0.9, 2.0], 1.0, ratio_clip=(0.8, 1.2))
    assert_response(actual, [-0.5, -0.45, -1.0], [0.5, 0.45, 1.0], [0, 0, 0])
    actual = of_ratios(minpro.loss, [0.5, 0.9, 2.0], -1.0, ratio_clip=(0.8, 1.2))
    assert_response(actual, [0.8, 0.8, 1.0], [0.0, 0.0, -1.0], [1, 1, 0])
    # w = 2, 6, 1.0
    actual = of_ratios(minpro.loss, [2.0, 3.0, 0.5], 1.0, ratio_clip=(0.8, 1.2))
    assert_response(actual, [-1.2, -1.2, -1.0], [0.0, 0.0, 1.0], [1, 1, 0])


def test_the_prefix_of_minpro_has_no_gradient():
    """The second token's loss gives no gradient to the first token, its prefix minimum."""
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    loss, _ = minpro.loss(
        logprobs,
        torch.tensor([[-0.5, -2.0]]),
        torch.ones(1),
        torch.ones(1, 2, dtype=torch.bool),
        ratio_clip=OPEN,
    )
    (gradient,) = torch.autograd.grad(loss[0, 1], logprobs)
    assert gradient[0].tolist() == pytest.approx([0.0, -math.exp(-0.5)])


# CTPO: q_t = prod_{j<=t} r_j within [0.8^sqrt(t), 1.2^sqrt(t)]; the gradient as above
@table(
    ("advantage", "losses", "weights", "clipped"),
    [
        (1.0, [-1.2, -1.0, -1.1, -0.5], [0.0, 1.0, 1.1, 0.5], [1, 0, 0, 0]),
        (-1.0, [1.2, 1.0, 1.1, 0.64], [0.0, -1.0, -1.1, 0.0], [1, 0, 0, 1]),  # t = 4: 0.8^2
    ],
)
def test_ctpo_by_hand(advantage, losses, weights, clipped):
    ratios = [1.5, 2 / 3, 1.1, 5 / 11]  # q = 1.5, 1.0, 1.1, 0.5
    log_clip = (math.log(0.8), math.log(1.2))
    actual = of_ratios(ctpo.loss, ratios, advantage, log_clip=log_clip)
    assert_response(actual, losses, weights, clipped)


def test_the_prefix_of_ctpo_skips_padding_and_has_no_gradient():
    logprobs = torch.tensor([[-1.0, -2.0, -9.0], [-1.0, -2.0, -3.0]], requires_grad=True)
    behavior = torch.tensor([[-0.5, -2.0, 0.0], [-0.5, -2.0, -3.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    loss, _ = ctpo.loss(logprobs, behavior, torch.ones(2), mask, log_clip=(-9.0, 9.0))
    gradients = [torch.autograd.grad(loss[row, 1], logprobs, retain_graph=True) for row in (0, 1)]
    for row, (gradient,) in enumerate(gradients):
        assert loss[row, :2].tolist() == pytest.approx([-math.exp(-0.5)] * 2)
        assert gradient[row].tolist() == pytest.approx([0.0, -math.exp(-0.5), 0.0])
