"""Memory that runs out in an update: it is computed again in smaller micro-batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mugrpo.config.run import ModelOptions
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize import forward, gradient
from mugrpo.optimize.budget import TokenBudget
from mugrpo.optimize.diagnostics import TokenStatistics
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.optimize.trainer import Trainer
from tests.builders import stale
from tests.cases import cross, table
from tests.faults.harm import CUDA, fail_at
from tests.updates import assert_same_gradients, config_of, step

BUDGET = 250  # the 12 responses with a gradient, of 12 to 64 tokens, make two micro-batches or more


def same_but_for_time(a: dict[str, Any], b: dict[str, Any]) -> bool:
    left, right = ({k: v for k, v in m.items() if not k.startswith("time/")} for m in (a, b))
    return left == right


def in_forward(nth: int) -> Callable[[pytest.MonkeyPatch, Policy], object]:
    return lambda patch, _policy: fail_at(patch, gradient, "batch_logprobs", nth)


def in_backward(nth: int) -> Callable[[pytest.MonkeyPatch, Policy], object]:
    """Fail in the `nth` backward pass, after some parameters have got their gradients."""

    def arm(patch: pytest.MonkeyPatch, policy: Policy) -> list[int]:
        passes = [0]
        weights = dict(policy.model.named_parameters())
        late = weights["model.layers.0.self_attn.q_proj.weight"]

        def hook(_gradient: torch.Tensor) -> None:
            passes[0] += 1
            if passes[0] == nth:
                left = [name for name, p in weights.items() if p.grad is not None]
                assert "model.norm.weight" in left
                assert (late.grad is None) == (nth == 1)
                raise CUDA

        late.register_hook(hook)
        return passes

    return arm


PLACES = {
    "statistics": lambda patch, _policy: fail_at(patch, TokenStatistics, "add", 2),
    "the first forward pass": in_forward(1),
    "the second forward pass": in_forward(2),
    "the first backward pass": in_backward(1),
    "the second backward pass": in_backward(2),
}


@pytest.mark.promise("memory")
@cross(place=PLACES, preset=["mu-grpo", "m2po"], share=[True, False, False])
def test_an_update_that_ran_out_of_memory_has_the_gradient_of_one_that_did_not(
    experience: Experience, monkeypatch: pytest.MonkeyPatch, place: str, preset: str, share: bool
):
    """Bit for bit that of an update with the lower budget, up to rounding that of the first budget.
    M2PO's forward passes begin with its pre-pass over all micro-batches, so it is the pre-pass that
    fails there."""
    experience, policy = stale(experience), load_policy(ModelOptions())

    def config_with(budget: int) -> Any:
        return config_of(preset=preset, optimizer={"micro_batch_tokens": budget})

    if share:
        Trainer(policy, config_with(BUDGET))  # tries with gradients whether prompts can be shared
    with monkeypatch.context() as patch:
        PLACES[place](patch, policy)
        metrics, gradients = step(experience, config_with(BUDGET), policy, share)
    lowered = metrics.pop("micro_batch_tokens")
    assert BUDGET / 5 < lowered <= BUDGET / 2
    smaller, exactly = step(experience, config_with(lowered), share=share)
    assert same_but_for_time(metrics, smaller)
    assert all(torch.equal(gradient, exactly[name]) for name, gradient in gradients.items())
    whole, nearly = step(experience, config_with(BUDGET), share=share)
    assert_same_gradients(gradients, nearly)
    for key in ("loss", "grad_norm", "entropy", "kl_behavior", "ratio/negative/p99"):
        assert metrics[key] == pytest.approx(whole[key], rel=1e-4)
    assert not same_but_for_time(metrics, whole)  # cut into other micro-batches


@table("nth", [1, 2])
def test_logprobs_of_another_policy_are_computed_again_in_smaller_micro_batches(
    experience: Experience, embedded_policy: Policy, monkeypatch: pytest.MonkeyPatch, nth: int
):
    told: list[str] = []
    config = config_of(optimizer={"micro_batch_tokens": BUDGET})
    budget = TokenBudget(config.optimizer, told.append)
    expected = rollout_logprobs(embedded_policy, experience.rollouts, config)
    with monkeypatch.context() as patch:
        fail_at(patch, forward, "batch_logprobs", nth)
        found = rollout_logprobs(embedded_policy, experience.rollouts, config, budget)
    assert len(told) == 1 and budget.tokens <= BUDGET / 2
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
