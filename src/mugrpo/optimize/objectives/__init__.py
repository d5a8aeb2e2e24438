"""Objectives, which are functions of tensors and numbers. Each has a file and is named after it.

The file `NAME.py` defines

    loss(logprobs_BT, behavior_BT, advantages_B, mask_BT, *, knobs) -> (token losses, metrics)

with logprobs of the policy and of the behavior policy, and the mask, which is bool and false in
padding. These four are passed by position. The T tokens are those that the policy sampled, next to
each other: what an environment said between them is left out. The token losses are [B, T] and to be
minimized. The metrics are a dictionary of [B, T] tensors. Their means over the update's sampled
tokens are logged. Advantages, masks, reduction and the size of the step are decided elsewhere. The
file also defines

    METRICS = names of the metrics to log; an update that computes nothing logs 0 for them

It may also define

    prepass(logprobs_BT, behavior_BT, advantages_B, mask_BT, *, knobs) -> {name: [B, T] tensor}
        called once per update, without gradient, with all responses that the update computes;
        `loss` gets the tensors it returns as further keyword arguments, cut to the micro-batch
    NEEDS_ZERO_ADVANTAGES = True
        if responses with advantage 0 have a gradient and so must be computed

A file of your own (`objective.name = "file"`) defines the same; see docs/objectives.md.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch

TokenTensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Objective:
    """What an objective's file defines, and the names of the stored logprobs that it needs."""

    loss: Callable[..., tuple[torch.Tensor, TokenTensors]]
    metrics: tuple[str, ...]
    prepass: Callable[..., TokenTensors] | None = None
    needs_zero_advantages: bool = False
    needs: tuple[str, ...] = ()


def load_objective(
    name: str, module: ModuleType | None = None, needs: tuple[str, ...] = ()
) -> Objective:
    """Return the objective `name`, or the one in `module`. Raises whatever importing it raises."""
    module = module or importlib.import_module(f"{__name__}.{name}")
    return Objective(
        loss=module.loss,
        metrics=tuple(getattr(module, "METRICS", ())),
        prepass=getattr(module, "prepass", None),
        needs_zero_advantages=getattr(module, "NEEDS_ZERO_ADVANTAGES", False),
        needs=needs,
    )
