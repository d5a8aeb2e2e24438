"""M2PO as released: the cap by hand and by bisection, and the clip that follows."""

from __future__ import annotations

import math

import pytest
import torch

from mugrpo.optimize.objectives import grpo, m2po_released
from tests.cases import table


def cap_of(
    log_ratios: list[list[float]] | torch.Tensor,
    advantages: list[float] | torch.Tensor,
    limit: float,
    mask: torch.Tensor | None = None,
) -> float:
    log_ratio_BT = torch.as_tensor(log_ratios, dtype=torch.float64)
    actual = m2po_released.prepass(
        log_ratio_BT,
        torch.zeros_like(log_ratio_BT),
        torch.as_tensor(advantages, dtype=torch.float64),
        torch.ones_like(log_ratio_BT).bool() if mask is None else mask,
        second_moment_limit=limit,
    )["cap"]
    assert actual.shape == log_ratio_BT.shape
    assert (actual == actual[0, 0]).all()
    return actual[0, 0].item()


# A = 1: .1, .2, .4 move away (.01, .04, .16; their sum .21), -.9 moves back.
@table(
    ("limit", "cap"),
    [
        (0.08, math.inf),  # a budget of .24 is not reached
        # .15: with the cap at .2 the sum is .01 + 2 x .04 = .09, so .01 + .04 + t^2 = .15
        (0.05, math.sqrt(0.10)),
        # .06: with the cap at .1 it is .03, so .01 + 2 t^2 = .06
        (0.02, math.sqrt(0.025)),
        # .015: under .03, so 3 t^2 = .015
        (0.005, math.sqrt(0.005)),
    ],
)
def test_the_cap_by_hand(limit, cap):
    assert cap_of([[0.4, 0.1, -0.9, 0.2]], [1.0], limit) == pytest.approx(cap, rel=1e-12)
    # The same three tokens that move away, in two responses of opposite signs.
    mask = torch.tensor([[True, True, True], [True, True, False]])
    actual = cap_of([[0.4, 0.1, -0.9], [-0.2, 0.9, -5.0]], [1.0, -1.0], limit, mask)
    assert actual == pytest.approx(cap, rel=1e-12)


def test_without_tokens_that_move_away_there_is_no_cap():
    assert cap_of([[-0.5, -3.0], [0.5, 3.0], [9.0, -9.0]], [1.0, -1.0, 0.0], 1e-9) == math.inf


def test_the_cap_meets_the_budget_on_random_updates():
    """sum min(d^2, t^2) = limit x |T|, by its definition, and by bisection."""
    capped = 0
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        log_ratio = 0.5 * torch.randn(4, 6, generator=generator, dtype=torch.float64)
        advantages = torch.randn(4, generator=generator, dtype=torch.float64)
        mask = torch.rand(4, 6, generator=generator) < 0.8
        limit = [0.01, 0.04, 0.2][seed % 3]
        squares = log_ratio[(advantages[:, None] * log_ratio > 0) & mask] ** 2
        cap = cap_of(log_ratio, advantages, limit, mask)
        if squares.sum() <= limit * len(squares):
            assert cap == math.inf
            continue
        capped += 1
        low, high = 0.0, 9.0
        for _ in range(200):
            middle = (low + high) / 2
            below = squares.clamp(max=middle**2).sum() < limit * len(squares)
            low, high = (middle, high) if below else (low, middle)
        assert cap == pytest.approx(high, rel=1e-9)
        total = squares.clamp(max=cap**2).sum().item()
        assert total == pytest.approx(limit * len(squares), rel=1e-12)
    assert capped > 50


def test_a_second_moment_of_exactly_the_limit():
    """11 equal squares at the limit: the cap is their common |log r|, or there is none."""
    cap = cap_of([[0.27] * 11], [1.0], 0.27**2)
    assert cap == math.inf or cap == pytest.approx(0.27)


@table(
    ("advantage", "losses", "weights", "clipped"),
    [
        # t = ln 2: [1/2, 2] on r = 1/4, 1, 3
        (1.0, [-0.25, -1.0, -2.0], [0.25, 1.0, 0.0], [0, 0, 1]),
        (-1.0, [0.5, 1.0, 3.0], [0.0, -1.0, -3.0], [1, 0, 0]),
    ],
)
def test_loss_by_hand(advantage, losses, weights, clipped):
    logprobs = torch.tensor([[0.25, 1.0, 3.0]], dtype=torch.float64).log().requires_grad_()
    loss, metrics = m2po_released.loss(
        logprobs,
        torch.zeros(1, 3, dtype=torch.float64),
        torch.tensor([advantage], dtype=torch.float64),
        torch.ones(1, 3, dtype=torch.bool),
        second_moment_limit=0.04,
        cap=torch.full((1, 3), math.log(2), dtype=torch.float64),
    )
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    assert loss[0].tolist() == pytest.approx(losses, abs=1e-12)
    assert (-gradient[0]).tolist() == pytest.approx(weights, abs=1e-12)
    assert metrics["clipped_fraction"][0].tolist() == [bool(c) for c in clipped]


def test_prepass_and_loss_together_by_hand():
    """The cap sqrt(.025) = .1581 from above clips .4 and .2 at e^.1581 = 1.1713, not .1 or -.9."""
    log_ratio = torch.tensor([[0.4, 0.1, -0.9, 0.2]], dtype=torch.float64)
    arguments = (
        log_ratio,
        torch.zeros_like(log_ratio),
        torch.ones(1, dtype=torch.float64),
        torch.ones(1, 4, dtype=torch.bool),
    )
    extra = m2po_released.prepass(*arguments, second_moment_limit=0.02)
    loss, metrics = m2po_released.loss(*arguments, second_moment_limit=0.02, **extra)
    held = math.exp(math.sqrt(0.025))
    expected = [-held, -math.exp(0.1), -math.exp(-0.9), -held]
    assert loss[0].tolist() == pytest.approx(expected, rel=1e-12)
    assert metrics["clipped_fraction"].tolist() == [[True, False, False, True]]


def test_equals_grpo_without_bounds_when_the_limit_is_not_reached():
    generator = torch.Generator().manual_seed(0)
    behavior = -3 * torch.rand(5, 7, generator=generator, dtype=torch.float64)
    logprobs = behavior + torch.randn(5, 7, generator=generator, dtype=torch.float64)
    advantages = torch.randn(5, generator=generator, dtype=torch.float64)
    arguments = (logprobs, behavior, advantages, torch.ones(5, 7, dtype=torch.bool))
    extra = m2po_released.prepass(*arguments, second_moment_limit=100.0)
    loss, metrics = m2po_released.loss(*arguments, second_moment_limit=100.0, **extra)
    assert torch.equal(loss, grpo.loss(*arguments, ratio_clip=(0.0, 1e30))[0])
    assert not metrics["clipped_fraction"].any()


def test_prepass_over_the_update_is_not_the_prepass_of_its_parts():
    """Squares .01 and .09, limit .06: together .10 <= .12; the second alone has cap sqrt(.06)."""
    assert cap_of([[0.1], [0.3]], [1.0, 1.0], 0.06) == math.inf
    assert cap_of([[0.3]], [1.0], 0.06) == pytest.approx(math.sqrt(0.06))
