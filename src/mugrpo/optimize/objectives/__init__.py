"""Objectives: functions of tensors and numbers. One file an objective, found by its name.

Each file `NAME.py` here defines

    loss(logprobs, behavior_logprobs, advantages, mask, *, knobs) -> (token losses, metrics)

with logprobs, behavior_logprobs [B, T] float, advantages [B], mask [B, T] bool true on response
tokens; token losses [B, T], to be minimized, and metrics a dictionary of [B, T] tensors whose
means over the update's response tokens are logged. Advantages, masks, reduction and the step's
size are not the objective's affair. And

    METRICS = names of the metrics, so that an update in which nothing is computed logs zeros

It may also define

    prepass(logprobs, behavior_logprobs, advantages, mask, *, knobs) -> {name: [B, T] tensor}
        called once an update, without gradient, with all its responses that are computed; what
        it returns is handed to `loss` as further keyword arguments, cut to the micro-batch
    NEEDS_ZERO_ADVANTAGES = True
        where responses with advantage 0 have a gradient and so must be computed

A file of your own (`objective.name = "file"`) defines the same; see docs/objectives.md.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

TokenTensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Objective:
    """What an objective's file defines, and the stored logprobs that it is handed."""

    loss: Callable[..., tuple[torch.Tensor, TokenTensors]]
    metrics: tuple[str, ...]
    prepass: Callable[..., TokenTensors] | None = None
    needs_zero_advantages: bool = False
    needs: tuple[str, ...] = ()


def load_objective(name: str, file: Path | None = None, needs: tuple[str, ...] = ()) -> Objective:
    """The objective `name`, or the one in `file`. Raises what importing it raises."""
    module = _module_of(file) if file else importlib.import_module(f"{__name__}.{name}")
    return Objective(
        loss=module.loss,
        metrics=tuple(getattr(module, "METRICS", ())),
        prepass=getattr(module, "prepass", None),
        needs_zero_advantages=getattr(module, "NEEDS_ZERO_ADVANTAGES", False),
        needs=needs,
    )


def _module_of(file: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"objective_in_{file.stem}", file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
