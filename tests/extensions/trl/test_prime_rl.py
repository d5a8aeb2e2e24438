"""A method as a custom loss of prime-rl, with stand-ins of its classes."""

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch

from mugrpo.config.load import build_config
from mugrpo.extensions.prime_rl import loss
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.reduction import reduced_loss
from tests.cases import table
from tests.objective_cases import seeded


@dataclass
class LossInputs:
    """Stand in for the class in prime_rl/trainer/rl/loss.py at 559b447."""

    trainer_logprobs: torch.Tensor
    inference_logprobs: torch.Tensor
    ref_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    loss_mask: torch.Tensor
    loss_weights: torch.Tensor | None = None


@dataclass
class LossOutputs:
    """Stand in for the class beside it."""

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def prime_rl(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prime_rl", "prime_rl.trainer", "prime_rl.trainer.rl", "prime_rl.trainer.rl.loss"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["prime_rl.trainer.rl.loss"].LossOutputs = LossOutputs


def test_a_sample_by_hand():
    """Ratios 1/2, 1/4, 8 with A = -2: the weights are -2 x 0.5 times their products 1/2, 1/8, 1.

    In front is a prompt of one token, and a user's turn of one after the first sampled token.
    """
    now = torch.tensor([1.0, 0.5, 1.0, 0.25, 8.0]).log().requires_grad_()
    mask = torch.tensor([0, 1, 0, 1, 1]).bool()
    inputs = LossInputs(now, torch.zeros(5), None, -2.0 * mask, mask)
    inputs.loss_weights = torch.tensor([1.0, 1.0, 1.0, 2.0, 1.0])
    found = loss(inputs, method="tapered-grpo", objective={"negative_weight": 0.5})
    found.loss.backward()
    assert found.loss.shape == () and now.grad.tolist() == pytest.approx([0, 0.5, 0, 0.25, 1])
    assert found.metrics["tapered_fraction"] == pytest.approx(2 / 3)


@table("method", ["tapered-grpo", "mu-grpo", "off-policy-grpo", "cispo"])
def test_samples_add_up_to_the_gradient_of_our_update(method: str):
    """prime-rl divides the samples' sum by the tokens of the step: our token_mean."""
    update = seeded(0).to(torch.float32)
    batch, tokens = update.batch, int(update.batch.mask.sum())
    options = {"preset": method, "reference": {"name": "off"}}
    ours = UpdateLoss(build_config(options, "test"))
    expected = update.logprobs.detach().clone().requires_grad_()
    reduced_loss(ours(batch, expected, {})[0], batch.mask, "token_mean", tokens).backward()

    now = update.logprobs.detach().clone().requires_grad_()
    of_tokens = batch.advantages[:, None] * batch.mask
    rows = zip(now, batch.behavior_logprobs, of_tokens, batch.mask, strict=True)
    samples = (LossInputs(row, then, None, a, mask) for row, then, a, mask in rows)
    (sum(loss(sample, method=method).loss for sample in samples) / tokens).backward()
    assert expected.grad.abs().max() > 0
    torch.testing.assert_close(now.grad, expected.grad)
