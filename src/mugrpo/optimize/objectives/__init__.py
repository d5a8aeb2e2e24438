"""Objectives: functions of tensors and numbers. One file an objective, found by its name.

Each file `NAME.py` here (its options are `config/objectives/NAME.py`) defines

    loss(logprobs, behavior_logprobs, advantages, mask, *, knobs) -> (token losses, metrics)

with logprobs, behavior_logprobs [B, T] float, advantages [B], mask [B, T] bool true on response
tokens; token losses [B, T], to be minimized, and metrics a dictionary of [B, T] tensors whose
means over the update's response tokens are logged. Reduction is not the objective's affair. And

    METRICS = names of the metrics, so that an update in which nothing is computed logs zeros

It may also define

    prepass(logprobs, behavior_logprobs, advantages, mask, *, knobs) -> {name: [B, T] tensor}
        called once an update, without gradient, with all its responses that are computed; what
        it returns is handed to `loss` as further keyword arguments, cut to the micro-batch
    NEEDS_ZERO_ADVANTAGES = True
        where responses with advantage 0 have a gradient and so must be computed
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

TokenTensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Objective:
    """What an objective's file defines."""

    loss: Callable[..., tuple[torch.Tensor, TokenTensors]]
    metrics: tuple[str, ...]
    prepass: Callable[..., TokenTensors] | None
    needs_zero_advantages: bool


def load_objective(name: str) -> Objective:
    module = importlib.import_module(f"{__name__}.{name}")
    return Objective(
        loss=module.loss,
        metrics=module.METRICS,
        prepass=getattr(module, "prepass", None),
        needs_zero_advantages=getattr(module, "NEEDS_ZERO_ADVANTAGES", False),
    )
