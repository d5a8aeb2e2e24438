"""Decoupled PPO, and GRPO's clip around the proximal policy, by hand."""

import torch

from mugrpo.config.load import build_config
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.objectives import decoupled_ppo, grpo
from tests.cases import table
from tests.updates import assert_response, hand_batch, of_ratios


def random_update(seed: int) -> tuple[torch.Tensor, ...]:
    """Return logprobs, behavior logprobs, proximal logprobs, advantages and mask."""
    generator = torch.Generator().manual_seed(seed)
    behavior = -3 * torch.rand(6, 7, generator=generator, dtype=torch.float64)
    proximal = behavior + 0.5 * torch.randn(6, 7, generator=generator, dtype=torch.float64)
    logprobs = proximal + 0.5 * torch.randn(6, 7, generator=generator, dtype=torch.float64)
    advantages = torch.randn(6, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([7, 1, 3, 7, 2, 5])
    return logprobs, behavior, proximal, advantages, torch.arange(7) < lengths[:, None]


# Decoupled PPO: -sg[prox / beta] min(q A, clip(q) A), q = pi / prox
@table(
    ("advantage", "losses", "weights", "clipped"),
    [
        # prox/beta = 2, 2, .5; pi/beta = 3, 1, .5: q = 1.5, .5, 1 in [.8, 1.2]
        (1.0, [-2.4, -1.0, -0.5], [0.0, 1.0, 0.5], [1, 0, 0]),  # 2 x 1.2; 2 x .5; .5 x 1
        (-1.0, [3.0, 1.6, 0.5], [-3.0, 0.0, -0.5], [0, 1, 0]),  # 2 x 1.5; 2 x .8; .5 x 1
    ],
)
def test_decoupled_ppo_by_hand(advantage, losses, weights, clipped):
    actual = of_ratios(
        decoupled_ppo.loss, [3.0, 1.0, 0.5], advantage, [2.0, 2.0, 0.5], ratio_clip=(0.8, 1.2)
    )
    assert_response(actual, losses, weights, clipped)


def test_decoupled_ppo_is_grpo_if_the_proximal_policy_is_the_behavior_policy():
    for seed in range(5):
        start, behavior, _, advantages, mask = random_update(seed)
        results = []
        for function, more in (
            (decoupled_ppo.loss, {"proximal_logprobs": behavior}),
            (grpo.loss, {}),
        ):
            logprobs = start.clone().requires_grad_()
            loss, metrics = function(
                logprobs, behavior, advantages, mask, ratio_clip=(0.8, 1.2), **more
            )
            (gradient,) = torch.autograd.grad((loss * mask).sum(), logprobs)
            results.append((loss.detach(), gradient, metrics["clipped_fraction"]))
        for ours, theirs in zip(*results, strict=True):
            assert torch.equal(ours, theirs)


# GRPO with clip_center "proximal": [max(r' - .2, 0), r' + .2], r' = prox / beta
@table(
    ("advantage", "losses", "weights", "clipped"),
    [
        # r' = 2, 2, 2, .1: [1.8, 2.2] and [0, .3]; r = 2.5, 2.1, 1, .01
        (1.0, [-2.2, -2.1, -1.0, -0.01], [0.0, 2.1, 1.0, 0.01], [1, 0, 0, 0]),
        (-1.0, [2.5, 2.1, 1.8, 0.01], [-2.5, -2.1, 0.0, -0.01], [0, 0, 1, 0]),
    ],
)
def test_clip_around_the_proximal_ratio_by_hand(advantage, losses, weights, clipped):
    actual = of_ratios(
        grpo.loss,
        [2.5, 2.1, 1.0, 0.01],
        advantage,
        [2.0, 2.0, 2.0, 0.1],
        ratio_clip=(0.8, 1.2),
        clip_center="proximal",
    )
    assert_response(actual, losses, weights, clipped)


# In UpdateLoss: if no proximal policy is stored, the policy takes its place
@table("objective", [{"name": "decoupled_ppo"}, {"name": "grpo", "clip_center": "proximal"}])
def test_without_a_stored_proximal_policy_it_is_the_policy_and_nothing_is_clipped(objective):
    loss = UpdateLoss(build_config({"preset": "grpo", "objective": objective}, "test"))
    start, behavior, proximal, advantages, mask = random_update(0)
    logprobs = start.clone().requires_grad_()
    batch = hand_batch(behavior, advantages, mask)
    loss_BT, metrics = loss(batch, logprobs, {})
    ratio_BT = (start - behavior).exp()
    torch.testing.assert_close(loss_BT, -ratio_BT * advantages[:, None], rtol=1e-12, atol=0)
    (gradient,) = torch.autograd.grad((loss_BT * mask).sum(), logprobs)
    torch.testing.assert_close(gradient, -ratio_BT * advantages[:, None] * mask)
    assert not metrics["clipped_fraction"].any()
    stored = hand_batch(behavior, advantages, mask, proximal_logprobs=proximal)
    _, metrics = loss(stored, logprobs, {})
    assert metrics["clipped_fraction"].any()
