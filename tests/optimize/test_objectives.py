"""The contract that the trainer relies on, checked for every objective."""

from typing import Any

import pytest
import torch

from mugrpo.config import objectives
from mugrpo.config.base import members_of
from mugrpo.optimize.objectives import Objective, load_objective

OBJECTIVES = {n: part for n, part in members_of(objectives.Objective).items() if n != "file"}
NAMES = sorted(OBJECTIVES)

# Every objective with its defaults, and the forms that an option selects.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in NAMES},
    "grpo of a sequence": ("grpo", {"level": "sequence"}),
    "grpo around the proximal policy": ("grpo", {"clip_center": "proximal"}),
    "grpo of both": ("grpo", {"level": "sequence", "clip_center": "proximal"}),
    "grpo with dual clip": ("grpo", {"dual_clip": 3.0}),
}
STORED = ("proximal_logprobs",)  # logprobs that an objective may ask for


def loaded(form: str) -> tuple[Objective, dict[str, Any]]:
    name, given = FORMS[form]
    options = OBJECTIVES[name](**given)
    assert set(options.needs) <= set(STORED)
    return load_objective(name, needs=options.needs), options.knobs


def evaluated(
    form: str, logprobs: torch.Tensor, behavior: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Return the form's token losses, their gradient w.r.t. the logprobs, and metrics.

    The second of the three responses has advantage 0. Stored logprobs lie halfway between policies.
    """
    objective, knobs = loaded(form)
    advantages = torch.tensor([1.0, 0.0, -1.0])
    extra = dict.fromkeys(objective.needs, (logprobs + behavior) / 2)
    logprobs = logprobs.clone().requires_grad_()
    if objective.prepass is not None:
        with torch.no_grad():
            extra |= objective.prepass(logprobs, behavior, advantages, mask, **knobs)
    loss, metrics = objective.loss(logprobs, behavior, advantages, mask, **knobs, **extra)
    (gradient,) = torch.autograd.grad((loss * mask).sum(), logprobs)
    return loss.detach(), gradient, metrics


@pytest.fixture
def update() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logprobs, behavior logprobs and mask: ragged, with ratios far above and below 1."""
    generator = torch.Generator().manual_seed(0)
    behavior = -3 * torch.rand(3, 40, generator=generator)
    logprobs = behavior + 3 * torch.randn(3, 40, generator=generator)
    return logprobs, behavior, torch.arange(40) < torch.tensor([30, 40, 20])[:, None]


@pytest.mark.parametrize("name", FORMS)
def test_an_objective_returns_the_metrics_that_it_names(name, update):
    _, _, metrics = evaluated(name, *update)
    assert tuple(metrics) == loaded(name)[0].metrics


@pytest.mark.parametrize("name", FORMS)
def test_only_objectives_that_say_so_have_a_gradient_at_advantage_0(name, update):
    """For all others, the trainer does not compute responses with advantage 0."""
    logprobs, behavior, mask = update
    near = behavior + (logprobs - behavior) / 300  # so that no response is clipped as a whole
    _, gradient, _ = evaluated(name, near, behavior, mask)
    assert gradient[1].any().item() == loaded(name)[0].needs_zero_advantages
    assert gradient[0].any() and gradient[2].any()
