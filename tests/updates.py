"""Single updates whose gradients a test can look at."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mugrpo.config.load import build_config
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.batching import MicroBatch
from mugrpo.optimize.cut import Layout
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer
from tests.builders import stale, verdict

Gradients = dict[str, torch.Tensor]


def config_of(objective: dict[str, Any] | None = None, **groups: Any) -> RunConfig:
    """Return a config of Mu-GRPO with AdamW as it is in torch and no bound on the gradient's norm.
    These are defaults: `objective` and `groups` lie over them."""
    plain = {"lr_schedule": "constant", "betas": (0.9, 0.999), "max_grad_norm": 1e9}
    optimizer = {**plain, **groups.pop("optimizer", {})}
    chosen = {} if objective is None else {"objective": objective}
    return build_config({"preset": "mu-grpo", **chosen, "optimizer": optimizer, **groups}, "test")


def hand_batch(
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    varied: torch.Tensor | None = None,
    **stored: torch.Tensor,
) -> MicroBatch:
    """Return a micro-batch for code that looks only at logprobs. Its token ids are all 0."""
    rows, width = mask.shape
    return MicroBatch(
        places=list(range(rows)),
        layout=Layout(False, rows * (width + 1), rows * (width + 1), 0),
        ids=np.zeros((rows, width + 1), np.int64),
        prompt_lengths=np.ones(rows, np.int64),
        chosen=mask.numpy(),
        prompts=None,
        steps=None,
        mask=mask,
        behavior_logprobs=behavior_logprobs,
        advantages=advantages,
        varied=torch.ones(rows, dtype=torch.bool) if varied is None else varied,
        stored=stored,
    )


Result = tuple[list[float], list[float], list[bool]]


def of_ratios(
    loss: Callable[..., Any],
    ratios: Sequence[float],
    advantage: float,
    proximal: Sequence[float] | None = None,
    **knobs: Any,
) -> Result:
    """Return (token losses, weights on grad log pi, clipped) of one response, in fp64. `ratios` are
    pi / beta, and `proximal` prox / beta. The policy's logprobs are -1, -2, -3, ... The loss is
    minimized, so the weight on grad log pi is minus the gradient w.r.t. the logprob."""
    logprobs = -torch.arange(1.0, len(ratios) + 1, dtype=torch.float64)[None]
    behavior = logprobs - torch.tensor([ratios], dtype=torch.float64).log()
    if proximal is not None:
        knobs["proximal_logprobs"] = behavior + torch.tensor([proximal]).double().log()
    loss_BT, metrics = loss(
        logprobs.requires_grad_(),
        behavior,
        torch.tensor([advantage], dtype=torch.float64),
        torch.ones(1, len(ratios), dtype=torch.bool),
        **knobs,
    )
    (gradient,) = torch.autograd.grad(loss_BT.sum(), logprobs)
    clipped = metrics.get("clipped_fraction", torch.zeros_like(loss_BT).bool())
    return loss_BT[0].tolist(), (-gradient[0]).tolist(), clipped[0].tolist()


def assert_response(
    actual: Result, losses: Sequence[float], weights: Sequence[float], clipped: Sequence[int]
) -> None:
    assert actual[0] == pytest.approx(losses, abs=1e-12)
    assert actual[1] == pytest.approx(weights, abs=1e-12)
    assert actual[2] == [bool(c) for c in clipped]


def step(
    experience: Experience, config: RunConfig, policy: Policy | None = None, share: bool = True
) -> tuple[dict[str, Any], Gradients]:
    """Return metrics and gradients of one update, with shared prompts if `share` allows them."""
    policy = policy or load_policy(ModelOptions())
    if not share:
        policy.can_share_prompts = False
    trainer = Trainer(policy, config)
    gradients: Gradients = {}

    def keep(*_: Any) -> None:
        trained = ((n, p) for n, p in policy.model.named_parameters() if p.requires_grad)
        gradients.update({n: p.grad.clone() for n, p in trained})

    trainer.optimizer.register_step_pre_hook(keep)
    return trainer.step(experience), gradients


def assert_same_gradients(a: Gradients, b: Gradients, rtol: float = 1e-4) -> None:
    """Check that two are equal up to rounding, relative to the largest entry of all."""
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
    """Return some rows of `experience` with other rewards."""
    rollouts = [experience.rollouts[row] for row in rows]
    return Experience(rollouts, [verdict(reward) for reward in rewards])


def with_stored(experience: Experience, *names: str, spread: float = 0.2) -> Experience:
    """Return `experience`, stale, with stored logprobs of other policies. They differ from the
    behavior policy's by normal noise with the standard deviation `spread`."""
    moved, rng = stale(experience), np.random.default_rng(4)
    behavior = [r.behavior_logprobs for r in moved.rollouts]
    stored = {
        n: [(b + rng.normal(0, spread, len(b))).astype("f4") for b in behavior] for n in names
    }
    return replace(moved, stored=stored)
