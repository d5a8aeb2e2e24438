"""OAPL by hand, and its least loss on a bandit."""

from __future__ import annotations

import math

import torch

from mugrpo.optimize.advantages import soft
from mugrpo.optimize.objectives import oapl


def test_losses_and_gradients_by_hand():
    """Ratios 2 and 4 (log 8 together) and 1/2; beta = 1/log 2: beta S = 3 and -1.

    A = 1 and -2: residuals 2 and 1, losses 4 and 1 at each token. Each token's gradient is
    2 beta residual, times the number of tokens.
    """
    behavior = torch.tensor([[-1.0, -2.0], [-1.0, -9.0]], dtype=torch.float64)
    ratios = torch.tensor([[2.0, 4.0], [0.5, 9.0]], dtype=torch.float64)
    logprobs = (behavior + ratios.log()).requires_grad_()
    mask = torch.tensor([[True, True], [True, False]])
    advantages = torch.tensor([1.0, -2.0], dtype=torch.float64)
    beta = 1 / math.log(2)
    loss, metrics = oapl.loss(logprobs, behavior, advantages, mask, beta=beta)
    loss = loss * mask
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    torch.testing.assert_close(loss.detach(), torch.tensor([[4.0, 4.0], [1.0, 0.0]]).double())
    expected = torch.tensor([[8 * beta, 8 * beta], [2 * beta, 0.0]]).double()
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(metrics["residual"], torch.tensor([[2.0, 2.0], [1.0, 0.0]]).double())


def test_the_soft_advantage_by_hand():
    """Rewards log 1 and log 3, beta 1: V = log 2. Beta 2: V = 2 log((1 + sqrt 3) / 2)."""
    rewards = torch.tensor([[0.0, math.log(3), 9.0]], dtype=torch.float64)
    valid = torch.tensor([[True, True, False]])
    expected = torch.tensor([[-math.log(2), math.log(1.5), 0.0]]).double()
    torch.testing.assert_close(soft(rewards, valid, beta=1.0), expected)
    value = 2 * math.log((1 + 3**0.5) / 2)
    expected = torch.tensor([[-value, math.log(3) - value, 0.0]]).double()
    torch.testing.assert_close(soft(rewards, valid, beta=2.0), expected)
    # V tends to the mean for large beta, to the maximum for small beta
    means = soft(rewards, valid, beta=1e4)[0, :2]
    torch.testing.assert_close(
        means, torch.tensor([-1, 1]).double() * math.log(3) / 2, rtol=0, atol=1e-4
    )
    assert abs(soft(rewards, valid, beta=1e-3)[0, 1].item()) < 1e-3


def test_gradient_descent_ends_at_behavior_times_exp_of_advantage_over_beta():
    """V with the same beta makes the target a distribution; further steps do not move it."""
    behavior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    rewards = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    beta = 0.5
    value = beta * (behavior * (rewards / beta).exp()).sum().log()
    target = behavior * ((rewards - value) / beta).exp()
    torch.testing.assert_close(target.sum(), torch.ones((), dtype=torch.float64))
    logits = behavior.log().requires_grad_()
    for _ in range(2000):
        logprobs = logits.log_softmax(-1)[:, None]
        mask = torch.ones(3, 1, dtype=torch.bool)
        loss, _ = oapl.loss(logprobs, behavior.log()[:, None], rewards - value, mask, beta=beta)
        (gradient,) = torch.autograd.grad((loss[:, 0] * behavior).sum(), logits)
        logits = (logits - gradient).detach().requires_grad_()
    torch.testing.assert_close(logits.softmax(-1).detach(), target, rtol=1e-6, atol=1e-6)
