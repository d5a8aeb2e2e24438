from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.updates import config_of, norm, part, step, weights

from mugrpo.config.run import ModelOptions
from mugrpo.optimize.trainer import Experience, Trainer
from mugrpo.policy import load_policy


def test_the_gradient_norm_is_told_before_it_is_clipped(experience):
    metrics, whole = step(experience, config_of())
    assert metrics["grad_norm"] == pytest.approx(norm(whole), rel=1e-5)
    limit = metrics["grad_norm"] / 3
    clipped_metrics, clipped = step(experience, config_of(optimizer={"max_grad_norm": limit}))
    assert clipped_metrics["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-5)
    assert norm(clipped) == pytest.approx(limit, rel=1e-4)


def test_weight_decay_shrinks_matrices_only(experience):
    # No gradient, so that only the decay moves weights: by the factor 1 - lr x decay = 0.98.
    policy = load_policy(ModelOptions())
    before = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    still = part(experience, [0, 1], [1, 1])
    step(still, config_of(optimizer={"lr": 0.1, "weight_decay": 0.2}), policy)
    for name, parameter in policy.model.named_parameters():
        factor = 0.98 if parameter.ndim == 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor, rtol=1e-6, atol=0)
    assert {p.ndim for p in policy.model.parameters()} == {1, 2}


def test_each_update_uses_the_learning_rate_of_its_number(experience):
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
    # Warm-up 1/2, 2/2 of the peak; then from the peak down to 0 over updates 2, 3, 4.
    for expected in (2e-3, 4e-3, 4e-3, 2e-3, 0.0):
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


# -1000 makes a ratio of e^1000, infinite in a response of negative advantage.
@pytest.mark.parametrize("value", [math.nan, -1000.0])
def test_a_nonfinite_update_touches_neither_weights_nor_moments(experience, value):
    trainer = Trainer(load_policy(ModelOptions()), config_of())
    trainer.step(experience)
    before = weights(trainer)
    moments = [t.clone() for s in trainer.optimizer.state.values() for t in s.values()]
    assert moments
    counts = []
    for case in (poisoned(experience, value), poisoned(experience, value), experience):
        metrics = trainer.step(case)
        counts.append((metrics["skipped"], trainer.nonfinite_in_a_row, trainer.update))
        if metrics["skipped"]:
            assert not math.isfinite(metrics["loss"])
            after = [t for s in trainer.optimizer.state.values() for t in s.values()]
            assert all(torch.equal(a, b) for a, b in zip(moments, after, strict=True))
            assert all(torch.equal(w, before[n]) for n, w in weights(trainer).items())
    assert counts == [(1, 1, 2), (1, 2, 3), (0, 0, 4)]
    assert trainer.policy.update == 4


def test_an_update_after_a_skipped_one_is_as_if_that_had_not_been(experience):
    skipping, plain = (Trainer(load_policy(ModelOptions()), config_of()) for _ in range(2))
    skipping.step(poisoned(experience, math.nan))
    skipping.step(experience)
    plain.step(experience)
    assert all(torch.equal(w, weights(plain)[n]) for n, w in weights(skipping).items())
