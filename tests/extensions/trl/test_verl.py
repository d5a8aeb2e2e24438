"""Methods as policy losses of verl, through a stand-in of verl's registry and aggregation."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from mugrpo.config.load import build_config
from mugrpo.extensions.verl import register
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.reduction import denominator, reduced_loss
from tests.objective_cases import seeded


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand in for verl/trainer/ppo/core_algos.py of verl 0.10 (1dda039)."""
    core = ModuleType("verl.trainer.ppo.core_algos")
    core.POLICY_LOSS_REGISTRY = {"gspo": None}

    def agg_loss(loss_mat, loss_mask, loss_agg_mode, dp_size=1, batch_num_tokens=None, **others):
        if loss_agg_mode == "token-mean":
            return (loss_mat * loss_mask).sum() / batch_num_tokens * dp_size
        means = (loss_mat * loss_mask).sum(-1) / (loss_mask.sum(-1) + 1e-8)
        return means.sum() / others["global_batch_size"] * dp_size  # seq-mean-token-mean

    core.agg_loss = agg_loss
    core.register_policy_loss = lambda name: (
        lambda function: core.POLICY_LOSS_REGISTRY.setdefault(name, function)
    )
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["verl.trainer.ppo"].core_algos = core
    return core.POLICY_LOSS_REGISTRY


def actor(dp_size: int, tokens: int, responses: int) -> SimpleNamespace:
    """Return what a loss reads of verl's ActorConfig."""
    info = {"dp_size": dp_size, "batch_num_tokens": tokens, "global_batch_size": responses}
    return SimpleNamespace(global_batch_info=info)


def called(
    loss: Any, old: Any, now: Any, advantages: Any, mask: Any, mode: str, config: Any, **is_
):
    """Call a loss with its arguments by name, as verl does."""
    named = {"old_log_prob": old, "log_prob": now, "advantages": advantages, "response_mask": mask}
    return loss(**named, loss_agg_mode=mode, config=config, **is_)


def test_a_registered_loss_by_hand(registry: dict[str, Any]):
    """Ratios 1/2, 1/4, 8 with A = -2: the weights are -2 x 0.5 times their products 1/2, 1/8, 1.

    The engine's weights double the second. The mini-batch has six tokens, on two ranks.
    """
    register("tapered-grpo", {"objective": {"negative_weight": 0.5}}, name="mine")
    now = torch.tensor([[0.5, 0.25, 8.0, 1.0]]).log().requires_grad_()
    mask = torch.tensor([[1, 1, 1, 0]])
    inputs = torch.zeros(1, 4), now, -2.0 * mask, mask
    weights = {"rollout_is_weights": torch.tensor([[1.0, 2.0, 1.0, 1.0]])}
    loss, metrics = called(registry["mine"], *inputs, "token-mean", actor(2, 6, 1), **weights)
    loss.backward()
    assert now.grad.tolist() == [pytest.approx([0.5 / 3, 0.25 / 3, 1 / 3, 0])]
    assert metrics["actor/tapered_fraction"] == pytest.approx(2 / 3)
    assert metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)  # the ratios' product is 1


@pytest.mark.parametrize("method", ["tapered-grpo", "mu-grpo", "off-policy-grpo", "cispo"])
@pytest.mark.parametrize(
    ("mode", "reduction"), [("token-mean", "token_mean"), ("seq-mean-token-mean", "sequence_mean")]
)
def test_the_gradient_is_ours_with_the_engine_corrected(registry, method, mode, reduction):
    """verl's old logprobs are our trainer_behavior_logprobs, its rollout_is our correction."""
    update = seeded(0).to(torch.float32)
    batch, rows = update.batch, len(update.batch.mask)
    tokens = int(batch.mask.sum())
    options = {
        "correction": {"name": "truncated", "interval": (0.0, 1.2)},
        "reference": {"name": "off"},
    }
    ours = UpdateLoss(build_config({"preset": method, **options}, "test"))
    expected = update.logprobs.detach().clone().requires_grad_()
    below = denominator(reduction, tokens=tokens, responses=rows, max_new_tokens=7)
    reduced_loss(ours(batch, expected, {})[0], batch.mask, reduction, below).backward()

    register(method, name="mine")
    now = update.logprobs.detach().clone().requires_grad_()
    old = batch.stored["trainer_behavior_logprobs"]
    inputs = old, now, batch.advantages[:, None] * batch.mask, batch.mask
    weights = {"rollout_is_weights": (old - batch.behavior_logprobs).exp().clamp(max=1.2)}
    loss, _ = called(registry["mine"], *inputs, mode, actor(1, tokens, rows), **weights)
    loss.backward()
    assert expected.grad.abs().max() > 0
    torch.testing.assert_close(now.grad, expected.grad)


def test_what_cannot_be_done_is_refused(registry: dict[str, Any]):
    with pytest.raises(ValueError, match="verl has a loss called 'gspo'"):
        register("gspo")
    with pytest.raises(ValueError, match="use `mugrpo train`"):
        register("m2po")
    loss = register("mu-grpo")
    ones = torch.ones(1, 2)
    with pytest.raises(ValueError, match="different advantages"):
        loss(ones, ones, torch.tensor([[1.0, 2.0]]), ones, config=actor(1, 2, 1))
