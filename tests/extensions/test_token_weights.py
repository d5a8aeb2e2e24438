import pytest
import torch

from mugrpo.config.run import PRESETS
from mugrpo.extensions.token_weights import Method
from tests.cases import table

REFUSED = {"decoupled-ppo", "m2po"}


@table("name", sorted(PRESETS.keys() - REFUSED))
def test_weights_have_the_gradient_of_the_method_and_ignore_what_was_not_sampled(name: str):
    """The mask has a hole in each response, as an environment's words make, and padding."""
    torch.manual_seed(0)
    method = Method.named(name)
    mask_BT = torch.tensor([[1, 0, 1, 1, 0], [0, 1, 1, 1, 1], [1, 1, 0, 0, 1]]).bool()
    now_BT = torch.randn(3, 5).mul(0.3).sub(2).masked_fill(~mask_BT, torch.nan)
    behavior_BT = now_BT + 0.8 * torch.randn(3, 5)
    advantages_B = torch.tensor([1.0, -1.0, -0.5])
    weights_BT, metrics = method.weights(now_BT, behavior_BT, advantages_B, mask_BT)
    assert (weights_BT[~mask_BT] == 0).all() and not weights_BT.requires_grad
    for b in range(3):  # each response by itself, without the tokens in between
        leaf_1T = now_BT[b : b + 1, mask_BT[b]].requires_grad_()
        then_1T = behavior_BT[b : b + 1, mask_BT[b]]
        loss_1T, values = method.loss.policy_term(
            leaf_1T, then_1T, advantages_B[b : b + 1], mask_BT[b : b + 1, mask_BT[b]],
            engine_BT=then_1T,
        )  # fmt: skip
        loss_1T.sum().backward()
        torch.testing.assert_close(weights_BT[b : b + 1, mask_BT[b]], -leaf_1T.grad)
        for metric, value in values.items():
            torch.testing.assert_close(metrics[metric][b, mask_BT[b]], value[0].float())


def test_the_weights_of_tapered_and_mu_grpo_by_hand():
    """Ratios 1/2, 1/4 and 8: their products up to each token are 1/2, 1/8 and 1."""
    now_BT = torch.tensor([[0.5, 0.25, 8.0]]).log()
    inputs = now_BT, torch.zeros(1, 3), torch.tensor([-2.0]), torch.ones(1, 3).bool()
    weights, metrics = Method.named("tapered-grpo").weights(*inputs)
    assert weights[0].tolist() == pytest.approx([-2 / 2, -2 / 8, -2])
    assert metrics["tapered_fraction"].tolist() == [[1, 1, 0]]
    weights, metrics = Method.named("mu-grpo", {"veto": {"threshold": 0.3}}).weights(*inputs)
    assert weights[0].tolist() == pytest.approx(
        [-2 * 0.5, -2 * 0.25, 0.0]
    )  # r A, until the trigger
    assert metrics["vetoed_fraction"].tolist() == [[0, 0, 1]]


@table(
    ("name", "options", "says"),
    [
        *((name, {}, "use `mugrpo train`") for name in sorted(REFUSED)),
        ("off-policy-grpo", {"objective": {"name": "decoupled_ppo"}}, "third policy"),
        ("ppo", {}, "grpo"),
        ("mu-grpo", {"veto": {"treshold": 0.1}}, "treshold"),
        ("mu-grpo", {"optimizer": {"lr": 1e-6}}, "optimizer"),
    ],
)
def test_what_is_no_weight_is_refused_by_name(name: str, options: dict, says: str):
    with pytest.raises(ValueError, match=says):
        Method.named(name, options)
