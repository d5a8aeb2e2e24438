"""KL terms to a reference or the behavior policy by hand. (test_bandit checks expectations.)"""

import math

import pytest
import torch

from mugrpo.config.load import build_config
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.objectives import kl_surrogate
from mugrpo.optimize.reference import kl
from tests.cases import table
from tests.updates import hand_batch

LN2 = math.log(2)


def test_corrected_k3_by_hand():
    """r (q - 1 - ln q); slope r (q - 1 - ln q) + r (1 - q) = -r ln q."""
    q, r = torch.tensor([[[2.0, 0.5, 1.0]], [[3.0, 0.5, 4.0]]]).double()  # ref / pi and pi / beta
    logprobs = torch.full((1, 3), -1.0, dtype=torch.float64, requires_grad=True)
    values = kl(logprobs, logprobs.detach() - r.log(), logprobs.detach() + q.log())
    expected = [3 * (1 - LN2), 0.5 * (LN2 - 0.5), 0.0]
    assert values[0].tolist() == pytest.approx(expected, abs=1e-12)
    (slopes,) = torch.autograd.grad(values.sum(), logprobs)
    assert slopes[0].tolist() == pytest.approx([-3 * LN2, 0.5 * LN2, 0.0], abs=1e-12)


def test_it_is_never_below_0_and_precise_near_equality():
    distance = torch.linspace(-2, 2, 401, dtype=torch.float64)[None]
    nothing = torch.zeros_like(distance)
    values = kl(nothing, nothing, distance)
    assert (values >= 0).all()
    assert values.argmin() == 200
    small = torch.tensor([[1e-3]])  # fp32: d^2 / 2
    values = kl(torch.zeros(1, 1), torch.zeros(1, 1), small)
    assert values.item() == pytest.approx(0.5e-6, rel=2e-3)


@table(
    ("logprob", "behavior", "ref", "ratio", "distance"),
    [
        (-math.inf, -1.0, -1.0, -40, 40),
        (-1.0, -1.0, -math.inf, 0, -40),
        (-math.inf, -1.0, -math.inf, -40, 0),
        (-1.0, -101.0, -2.0, 40, -1),
        (-101.0, -1.0, -1.0, -40, 40),
    ],
)
def test_extreme_probabilities_are_finite_in_fp32(logprob, behavior, ref, ratio, distance):
    logprobs = torch.tensor([[logprob]], requires_grad=True)
    actual = kl(logprobs, torch.tensor([[behavior]]), torch.tensor([[ref]]))
    expected = (math.expm1(distance) - distance) * math.exp(ratio)
    assert actual.item() == pytest.approx(expected, rel=1e-4)
    actual.sum().backward()
    assert logprobs.grad.isfinite().all()


BEHAVIOR = torch.full((2, 3), -1.0, dtype=torch.float64)
RATIOS = torch.tensor([[1.0, 2.0, 1.0], [0.5, 0.001, 1.0]], dtype=torch.float64)
REFERENCE = BEHAVIOR + RATIOS.log() + LN2  # q = 2 everywhere: k3 = 1 - ln 2
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bool)


def evaluated(
    varied: tuple[bool, bool] = (True, True), **groups: object
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(token losses, metrics) with advantages 1 and -1 under GRPO with a KL coefficient of .5."""
    reference = {"name": "kl", "coefficient": 0.5}
    config = build_config({"preset": "grpo", "reference": reference, **groups}, "test")
    stored = {"reference_logprobs": REFERENCE, "trainer_behavior_logprobs": BEHAVIOR + LN2}
    advantages = torch.tensor([1.0, -1.0]).double()
    batch = hand_batch(BEHAVIOR, advantages, MASK, torch.tensor(varied), **stored)
    loss_BT, metrics = UpdateLoss(config)(batch, BEHAVIOR + RATIOS.log(), {})
    return loss_BT * MASK, metrics


K = 0.5 * (1 - LN2)  # times each token's ratio


def same(actual: torch.Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected).double(), rtol=1e-6, atol=1e-12)


ALONE = {"varied": (True, False)}  # the second group has no variance
WHOLE = [0.8 + K / 2, 0.8 + K / 1000, 1 + K]


@table(
    ("groups", "second"),
    [
        ({}, WHOLE),  # GRPO in [.8, 1.2]: -1, -1.2, padding; .8, .8, 1
        (ALONE, [0.8, 0.8, 1.0]),  # no term, unless the mask is off
        ({**ALONE, "advantage": {"zero_variance_mask": False}}, WHOLE),
        # vetoed tokens and removed responses keep their term: .001 triggers, the last is vetoed
        ({"veto": {"name": "negative_advantage", "threshold": 0.01}}, [*WHOLE[:2], K]),
        ({"sequence_mask": {"name": "off_policy", "delta": 0.5}}, [K / 2, K / 1000, K]),
    ],
)
def test_the_loss_is_the_objectives_plus_the_coefficient_times_the_divergence(groups, second):
    loss, metrics = evaluated(**groups)
    same(loss, [[-1 + K, -1.2 + 2 * K, 0], second])
    divergence = [[2 * K, 4 * K, 0], [K, 2 * K / 1000, 2 * K]]
    same(metrics["kl_reference"], [divergence[0], [0.0] * 3] if groups is ALONE else divergence)


LN2 = math.log(2)


@table("advantage", [1.0, -3.0, 0.0])
@table("penalty", [0.0, 0.1, 2.0])
def test_losses_weights_and_penalty_by_hand(advantage, penalty):
    """At r = 2, 1/2, 1, r log r - r + 1 is 2 ln 2 - 1, (1 - ln 2) / 2, 0.

    Its derivative in log pi is r log r, so

        loss = -r A + penalty (r log r - r + 1),   weight on grad log pi = r A - penalty r log r.
    """
    behavior = torch.full((1, 3), -1.5, dtype=torch.float64)
    ratios = torch.tensor([[2.0, 0.5, 1.0]], dtype=torch.float64)
    logprobs = (behavior + ratios.log()).requires_grad_()
    advantages, mask = torch.tensor([advantage]).double(), torch.ones(1, 3, dtype=torch.bool)
    loss, metrics = kl_surrogate.loss(logprobs, behavior, advantages, mask, penalty=penalty)
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    kl = [2 * LN2 - 1, (1 - LN2) / 2, 0.0]
    assert metrics["kl_penalty"][0].tolist() == pytest.approx(kl, abs=1e-12)
    assert loss[0].tolist() == pytest.approx(
        [-2 * advantage + penalty * kl[0], -0.5 * advantage + penalty * kl[1], -advantage],
        abs=1e-12,
    )
    assert (-gradient[0]).tolist() == pytest.approx(
        [2 * advantage - penalty * 2 * LN2, 0.5 * advantage + penalty * 0.5 * LN2, advantage],
        abs=1e-12,
    )


def test_the_penalty_is_never_below_0_and_precise_near_ratio_1():
    """In fp32. With x = log r it is x^2 / 2 + x^3 / 3 + .. near r = 1. At x = .001, r log r - (r -
    1) is off by 5 percent, because r - 1 has few digits."""

    def penalties(log_ratio: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(log_ratio, dtype=torch.bool)
        nothing = torch.zeros_like(log_ratio)
        _, metrics = kl_surrogate.loss(log_ratio, nothing, torch.zeros(1), mask, penalty=1.0)
        assert metrics["kl_penalty"].dtype == torch.float32
        return metrics["kl_penalty"][0]

    values = penalties(torch.arange(-300.0, 301.0)[None] / 100)
    assert (values >= 0).all()
    assert values.argmin() == 300 and values[300] == 0
    x = 1e-3
    assert penalties(torch.tensor([[x]])).item() == pytest.approx(x**2 / 2 + x**3 / 3, rel=1e-3)
