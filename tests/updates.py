"""Single updates whose gradients a test can look at."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from mugrpo.config.load import build_config
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.optimize.trainer import Experience, Trainer
from mugrpo.policy import Policy, load_policy
from tests.builders import verdict

Gradients = dict[str, torch.Tensor]


def config_of(objective: dict[str, Any] | None = None, **groups: Any) -> RunConfig:
    """A config whose gradient is not clipped unless asked."""
    optimizer = {"max_grad_norm": 1e9, **groups.pop("optimizer", {})}
    return build_config({"objective": objective or {}, "optimizer": optimizer, **groups}, "test")


def step(
    experience: Experience, config: RunConfig, policy: Policy | None = None, **objective: Any
) -> tuple[dict[str, Any], Gradients]:
    """Metrics and gradients of one update of a fresh trainer; `objective` replaces its parts."""
    policy = policy or load_policy(ModelOptions())
    trainer = Trainer(policy, config)
    trainer.objective = replace(trainer.objective, **objective)
    gradients: Gradients = {}

    def keep(*_: Any) -> None:
        gradients.update({n: p.grad.clone() for n, p in policy.model.named_parameters()})

    trainer.optimizer.register_step_pre_hook(keep)
    return trainer.step(experience), gradients


def assert_same_gradients(a: Gradients, b: Gradients, rtol: float = 1e-4) -> None:
    """Equal up to rounding, measured by the largest entry of all."""
    assert a.keys() == b.keys()
    scale = max(tensor.abs().max().item() for tensor in b.values())
    assert scale > 0
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], rtol=rtol, atol=rtol * scale, msg=name)


def norm(gradients: Gradients) -> float:
    return math.sqrt(sum(tensor.double().square().sum().item() for tensor in gradients.values()))


def weights(trainer: Trainer) -> Gradients:
    return {n: p.detach().clone() for n, p in trainer.policy.model.named_parameters()}


def part(experience: Experience, rows: list[int], rewards: list[float | None]) -> Experience:
    """Some rows of `experience` under other rewards."""
    rollouts = [experience.rollouts[row] for row in rows]
    return Experience(rollouts, [verdict(reward) for reward in rewards])
