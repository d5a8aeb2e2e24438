"""The KL-penalized surrogate, worked out by hand. (test_bandit enumerates its expectation.)"""

import math

import pytest
import torch

from mugrpo.optimize.objectives import kl_surrogate
from tests.cases import table

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
    loss, metrics = kl_surrogate.loss(
        logprobs,
        behavior,
        torch.tensor([advantage], dtype=torch.float64),
        torch.ones(1, 3, dtype=torch.bool),
        penalty=penalty,
    )
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
    """In fp32. With x = log r it is x^2 / 2 + x^3 / 3 + .. near r = 1.

    At x = .001, r log r - (r - 1) is off by 5 percent, because r - 1 has few digits.
    """

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
