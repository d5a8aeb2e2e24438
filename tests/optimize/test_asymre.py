"""AsymRE's phase transition on a bandit: what exact expected updates converge to.

The bandit is the one of test_bandit: five arms, and twenty responses of one token that are the
behavior policy's exact distribution.
"""

from __future__ import annotations

import torch

from mugrpo.optimize import advantages
from mugrpo.optimize.objectives import reinforce
from tests.cases import table

COUNTS = torch.tensor([10, 5, 3, 1, 1])
ARMS = torch.repeat_interleave(torch.arange(5), COUNTS)  # the arm of each of the twenty responses
BETA = COUNTS.double() / 20
REWARDS = torch.tensor([0.5, 0.6, 0.3, 0.9, 0.0], dtype=torch.float64)
MEAN = (BETA * REWARDS).sum()  # .49

Tensor = torch.Tensor


def gradient(logits: Tensor, delta: float) -> Tensor:
    """Return the gradient of the expected loss, -A log pi, in the logits."""
    every = torch.ones(1, 20, dtype=torch.bool)
    of_responses = advantages.asymre(REWARDS[ARMS][None], every, delta=delta)[0]
    logprobs_BT, behavior_BT = (values[ARMS][:, None] for values in (logits.log_softmax(-1), BETA))
    loss_BT, _ = reinforce.loss(logprobs_BT, behavior_BT.log(), of_responses, every.T)
    return torch.autograd.grad(loss_BT.mean(), logits)[0]


def after_asymre(delta: float, updates: int, lr: float) -> Tensor:
    """Return the logprobs after exact expected updates from the behavior policy."""
    logits = BETA.log().requires_grad_()
    for _ in range(updates):
        logits = (logits - lr * gradient(logits, delta)).detach().requires_grad_()
    return logits.log_softmax(-1).detach()


def asymre_limit(delta: float) -> Tensor:
    """Return the policy that AsymRE converges to if delta < 0.

    With c = beta (R - mean - delta), which sums to -delta, theta_a grows by c_a + delta pi_a. The
    arms that survive grow at a common rate l: pi_a = (c_a - l) / -delta for those with c_a > l,
    where l is such that pi sums to 1. The other arms fall behind forever.
    """
    c = BETA * (REWARDS - MEAN - delta)
    low, high = -1.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        above = (c - middle).clamp(min=0).sum() > -delta
        low, high = (middle, high) if above else (low, middle)
    return (c - high).clamp(min=0) / -delta


@table(
    ("delta", "updates", "support"),
    [
        (-0.6, 1500, [0, 1, 2, 3, 4]),  # below min R - mean: every advantage is positive
        (-0.3, 500, [0, 1, 2, 3]),
        (-0.1, 250, [0, 1, 3]),
        (-0.05, 100, [0, 1, 3]),
    ],
)
def test_asymre_below_0_keeps_a_support_and_improves(delta, updates, support):
    limit = asymre_limit(delta)
    logprobs = after_asymre(delta, updates, lr=-1 / delta)
    assert logprobs.min() > -80  # nothing is clamped yet
    actual = logprobs.exp()
    torch.testing.assert_close(actual, limit, rtol=1e-5, atol=1e-5)
    assert (limit > 0).nonzero()[:, 0].tolist() == support
    assert (actual * REWARDS).sum() > MEAN + 0.01


@table("delta", [0.0, 0.1, 0.3])
def test_asymre_at_0_or_above_collapses_onto_one_arm_which_need_not_be_the_best(delta):
    """At 0, theta grows by the constant c, so the largest beta (R - mean) wins, arm 1."""
    updates = {0.0: 70, 0.1: 28, 0.3: 12}[delta]
    logprobs = after_asymre(delta, updates, lr=20.0)
    assert logprobs.min() > -80
    assert logprobs.exp().max() > 0.999
    assert logprobs.argmax() == 1 != REWARDS.argmax()


def test_asymre_at_0_stays_collapsed_however_long_it_goes_on():
    assert after_asymre(0.0, updates=2000, lr=20.0).exp().max() > 0.999


def test_the_expected_gradient_is_0_at_asymres_optimum_below_0():
    """With every advantage positive: pi = beta A / sum beta A."""
    limit = asymre_limit(-0.6)
    weights = BETA * (REWARDS - MEAN + 0.6)
    torch.testing.assert_close(limit, weights / weights.sum(), rtol=1e-12, atol=1e-12)
    assert gradient(limit.log().requires_grad_(), delta=-0.6).abs().max() < 1e-12
