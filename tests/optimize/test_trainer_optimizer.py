import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize import gradient
from mugrpo.optimize.batching import MicroBatch
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer
from tests.cases import table
from tests.updates import assert_same_gradients, config_of, norm, part, step, weights


def test_the_gradient_norm_is_reported_before_clipping(experience):
    metrics, whole = step(experience, config_of())
    assert metrics["grad_norm"] == pytest.approx(norm(whole), rel=1e-5)
    limit = metrics["grad_norm"] / 3
    clipped_metrics, clipped = step(experience, config_of(optimizer={"max_grad_norm": limit}))
    assert clipped_metrics["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-5)
    assert norm(clipped) == pytest.approx(limit, rel=1e-4)


def test_weight_decay_shrinks_matrices_only(experience):
    # Without a gradient only the decay changes weights, by the factor 1 - lr x decay = 0.98.
    policy = load_policy(ModelOptions())
    before = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    still = part(experience, [0, 1], [1, 1])
    step(still, config_of(optimizer={"lr": 0.1, "weight_decay": 0.2}), policy)
    for name, parameter in policy.model.named_parameters():
        factor = 0.98 if parameter.ndim == 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor, rtol=1e-6, atol=0)
    assert {p.ndim for p in policy.model.parameters()} == {1, 2}


def test_each_update_uses_its_own_learning_rate(experience):
    # With betas of 0 AdamW moves a weight by lr x g / (|g| + eps): by lr where |g| >> eps.
    optimizer = {
        "lr": 4e-3,
        "warmup_updates": 2,
        "lr_schedule": "linear",
        "betas": [0.0, 0.0],
        "eps": 1e-12,
    }
    schedule = {"stages": 1, "batches_per_stage": 5}
    trainer = Trainer(
        load_policy(ModelOptions()), config_of(optimizer=optimizer, schedule=schedule)
    )
    # Warm-up 1/2, 2/2 of the peak; then 3/3, 2/3, 1/3 of it: update 5 would have 0.
    for expected in (2e-3, 4e-3, 4e-3, 8e-3 / 3, 4e-3 / 3):
        before = weights(trainer)
        metrics = trainer.step(experience)
        moved = max((w - before[n]).abs().max().item() for n, w in weights(trainer).items())
        assert metrics["lr"] == pytest.approx(expected)
        assert moved == pytest.approx(expected, rel=1e-3)


def poisoned(experience: Experience, value: float) -> Experience:
    """`experience` with one behavior logprob of response 1, which has an advantage, replaced."""
    logprobs = experience.rollouts[1].behavior_logprobs.copy()
    logprobs[3] = value
    rollouts = list(experience.rollouts)
    rollouts[1] = replace(rollouts[1], behavior_logprobs=logprobs)
    return Experience(rollouts, experience.scores)


def nan_policy(monkeypatch: pytest.MonkeyPatch, *updates: int) -> None:
    """Make the policy's own logprobs NaN in these updates, counted from 0."""
    logprobs = gradient.batch_logprobs

    def spoiled(policy: Policy, batch: MicroBatch, config: RunConfig) -> tuple[Any, Any]:
        logprobs_BT, entropy_BT = logprobs(policy, batch, config)
        return logprobs_BT * (math.nan if policy.update in updates else 1), entropy_BT

    monkeypatch.setattr(gradient, "batch_logprobs", spoiled)


@table("where", ["policy", "rollouts"])
def test_a_nonfinite_update_touches_neither_weights_nor_moments(experience, monkeypatch, where):
    trainer, bad = Trainer(load_policy(ModelOptions()), config_of()), experience
    if where == "policy":
        nan_policy(monkeypatch, 1, 2)
    else:
        bad = poisoned(experience, math.nan)
    trainer.step(experience)
    before = weights(trainer)
    moments = [t.clone() for s in trainer.optimizer.state.values() for t in s.values()]
    assert moments
    counts = []
    for case in (bad, bad, experience):
        metrics = trainer.step(case)
        counts.append((metrics["skipped"], trainer.nonfinite_in_a_row, trainer.update))
        if metrics["skipped"]:
            assert not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"]))
            after = [t for s in trainer.optimizer.state.values() for t in s.values()]
            assert all(torch.equal(a, b) for a, b in zip(moments, after, strict=True))
            assert all(torch.equal(w, before[n]) for n, w in weights(trainer).items())
    assert counts == [(1, 1, 2), (1, 2, 3), (0, 0, 4)]
    assert trainer.policy.update == 4


def test_a_token_whose_ratio_is_beyond_e_80_has_no_gradient_and_the_update_is_applied(experience):
    """A ratio of e^1000 would be infinite; clamped, it gives a large loss and no gradient."""
    metrics, gradients = step(poisoned(experience, -1000.0), config_of())
    assert metrics["skipped"] == 0 and 1e30 < metrics["loss"] < math.inf
    # Compare with a ratio that dual clip clips, so that the token has no gradient either.
    objective = {"name": "grpo", "dual_clip": 5.0}
    _, expected = step(poisoned(experience, -20.0), config_of(objective))
    assert_same_gradients(gradients, expected)
