"""What every objective promises, whichever there are: the contract that the trainer relies on."""

from __future__ import annotations

import pytest
import torch

from mugrpo.config.registry import OBJECTIVES
from mugrpo.optimize.objectives import load_objective

NAMES = sorted(OBJECTIVES)


def evaluated(
    name: str, logprobs: torch.Tensor, behavior: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """(token losses, gradient by the logprobs, metrics) under the objective's default knobs.

    The middle one of three responses has advantage 0.
    """
    objective, knobs = load_objective(name), OBJECTIVES[name]().knobs
    logprobs = logprobs.clone().requires_grad_()
    advantages = torch.tensor([1.0, 0.0, -1.0])
    extra = {}
    if objective.prepass is not None:
        with torch.no_grad():
            extra = objective.prepass(logprobs, behavior, advantages, mask, **knobs)
    loss, metrics = objective.loss(logprobs, behavior, advantages, mask, **knobs, **extra)
    (gradient,) = torch.autograd.grad((loss * mask).sum(), logprobs)
    return loss.detach(), gradient, metrics


@pytest.fixture
def update() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logprobs, behavior logprobs, mask: ratios far on both sides, ragged."""
    generator = torch.Generator().manual_seed(0)
    behavior = -3 * torch.rand(3, 40, generator=generator)
    logprobs = behavior + 3 * torch.randn(3, 40, generator=generator)
    return logprobs, behavior, torch.arange(40) < torch.tensor([30, 40, 20])[:, None]


@pytest.mark.parametrize("name", NAMES)
def test_an_objective_returns_the_metrics_that_it_names(name, update):
    _, _, metrics = evaluated(name, *update)
    assert tuple(metrics) == load_objective(name).metrics


@pytest.mark.parametrize("name", NAMES)
def test_metrics_are_0_on_padding(name, update):
    mask = update[2]
    _, _, metrics = evaluated(name, *update)
    assert all((tensor[~mask] == 0).all() for tensor in metrics.values())
    assert any((tensor[mask] != 0).any() for tensor in metrics.values())


@pytest.mark.parametrize("name", NAMES)
def test_what_padding_holds_changes_no_loss_and_no_gradient(name, update):
    logprobs, behavior, mask = update
    loss, gradient, _ = evaluated(name, logprobs, behavior, mask)
    other = (logprobs.masked_fill(~mask, -7.0), behavior.masked_fill(~mask, -0.1), mask)
    other_loss, other_gradient, _ = evaluated(name, *other)
    assert torch.equal(loss[mask], other_loss[mask])
    assert torch.equal(gradient, other_gradient)


@pytest.mark.parametrize("name", NAMES)
def test_only_objectives_that_say_so_have_a_gradient_at_advantage_0(name, update):
    """The trainer does not compute such responses otherwise."""
    _, gradient, _ = evaluated(name, *update)
    assert gradient[1].any().item() == load_objective(name).needs_zero_advantages
    assert gradient[0].any() and gradient[2].any()
