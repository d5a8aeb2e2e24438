"""Truncated and masked importance sampling by hand. (Compared with TRL in test_trl_equality.)"""

import math

import pytest
import torch

from mugrpo.config.load import build_config
from mugrpo.optimize import corrections
from mugrpo.optimize.loss import UpdateLoss
from tests.cases import table
from tests.updates import hand_batch

# w = trainer / engine: 4, .5, .75 for three tokens; 1.5, 2 for two. The products are 1.5 and 3.
WEIGHTS = [[4.0, 0.5, 0.75], [1.5, 2.0, 99.0]]
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)


def weighed(kind: str, trainer, engine, mask, *, interval, level) -> torch.Tensor:
    weights_BT = corrections.weights(trainer, engine, mask, level)
    return getattr(corrections, kind)(weights_BT, *interval)


def of_weights(kind: str, **knobs: object) -> torch.Tensor:
    """Return the weights, 0 on padding."""
    engine = -torch.arange(1.0, 7.0, dtype=torch.float64).reshape(2, 3)
    trainer = engine + torch.tensor(WEIGHTS, dtype=torch.float64).log()
    return weighed(kind, trainer, engine, MASK, **knobs) * MASK


@table(
    ("kind", "interval", "level", "expected"),
    [
        ("truncated", (0.0, 2.0), "token", [[2.0, 0.5, 0.75], [1.5, 2.0, 0.0]]),
        ("truncated", (0.0, 0.6), "token", [[0.6, 0.5, 0.6], [0.6, 0.6, 0.0]]),
        ("truncated", (0.0, 2.0), "sequence", [[1.5, 1.5, 1.5], [2.0, 2.0, 0.0]]),
        ("truncated", (0.0, 10.0), "sequence", [[1.5, 1.5, 1.5], [3.0, 3.0, 0.0]]),
        ("masked", (0.0, 2.5), "token", [[0.0, 0.5, 0.75], [1.5, 2.0, 0.0]]),
        ("masked", (0.7, 1.6), "token", [[0.0, 0.0, 0.75], [1.5, 0.0, 0.0]]),
        ("masked", (0.0, 2.0), "sequence", [[1.5, 1.5, 1.5], [0.0, 0.0, 0.0]]),
        ("masked", (2.0, 4.0), "sequence", [[0.0, 0.0, 0.0], [3.0, 3.0, 0.0]]),
    ],
)
def test_weights_by_hand(kind, interval, level, expected):
    actual = of_weights(kind, interval=interval, level=level)
    torch.testing.assert_close(actual, torch.tensor(expected).double(), rtol=1e-7, atol=0)


@table("level", ["token", "sequence"])
def test_extreme_probabilities_give_weights_from_0_to_the_bound(level):
    """Probability 0 in the trainer: w = e^-80; in the engine: e^80, capped or masked; both: 1."""
    nothing = -math.inf
    trainer = torch.tensor([[nothing], [-1.0], [nothing]])
    engine = torch.tensor([[-1.0], [nothing], [nothing]])
    mask = torch.ones(3, 1, dtype=torch.bool)
    tiny = math.exp(-80)
    actual = weighed("truncated", trainer, engine, mask, interval=(0.0, 2.0), level=level)
    assert actual[:, 0].tolist() == pytest.approx([tiny, 2.0, 1.0], rel=1e-4)
    actual = weighed("masked", trainer, engine, mask, interval=(0.5, 2.0), level=level)
    assert actual[:, 0].tolist() == [0.0, 0.0, 1.0]


def test_the_policys_ratio_is_relative_to_the_trainers_probabilities():
    """w = 1.5 (trainer / engine), r = 1.1 (policy / trainer): loss -1.5 x 1.1, not -1.5 x 1.65. The
    second token's r = 1.3 is clipped at 1.2: -1.5 x 1.2."""
    engine = torch.tensor([[-1.0, -2.0]], dtype=torch.float64)
    trainer = engine + math.log(1.5)
    logprobs = (trainer + torch.tensor([[1.1, 1.3]]).double().log()).requires_grad_()
    one, mask = torch.ones(1).double(), torch.ones(1, 2, dtype=torch.bool)
    batch = hand_batch(engine, one, mask, trainer_behavior_logprobs=trainer)
    correction = {"name": "truncated", "interval": (0.0, 2.0)}
    loss = UpdateLoss(build_config({"preset": "grpo", "correction": correction}, "test"))
    loss_BT, metrics = loss(batch, logprobs, {})
    assert loss_BT[0].tolist() == pytest.approx([-1.65, -1.8], rel=1e-6)
    (gradient,) = torch.autograd.grad(loss_BT.sum(), logprobs)
    assert gradient[0].tolist() == pytest.approx([-1.65, 0.0], rel=1e-6)
    assert metrics["correction_weight"][0].tolist() == pytest.approx([1.5, 1.5])
    # Plain GRPO uses the engine's probabilities: r = 1.65 and 1.95, both clipped.
    plain = UpdateLoss(build_config({"preset": "grpo"}, "test"))
    assert plain(batch, logprobs, {})[0][0].tolist() == pytest.approx([-1.2, -1.2])
