"""Reinforcement learning of language models in few large stages: the documented Python API.

docs/api.md has a line for each name. A name is imported when it is first used, so that
`import mugrpo` loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mugrpo.config.cores import bound_spinning

if TYPE_CHECKING:
    from mugrpo.config.load import load_config as load_config
    from mugrpo.disk.errors import RunStopped as RunStopped
    from mugrpo.disk.errors import UsageError as UsageError
    from mugrpo.disk.metrics import read_metrics as read_metrics
    from mugrpo.disk.records import FinishReason as FinishReason
    from mugrpo.disk.records import Problem as Problem
    from mugrpo.disk.records import Response as Response
    from mugrpo.disk.records import Rollout as Rollout
    from mugrpo.disk.shards import ROLLOUT_SCHEMA as ROLLOUT_SCHEMA
    from mugrpo.disk.shards import ShardSet as ShardSet
    from mugrpo.disk.shards import read_rollouts as read_rollouts
    from mugrpo.disk.shards import write_rollouts as write_rollouts
    from mugrpo.engines import make_engine as make_engine
    from mugrpo.engines.base import Request as Request
    from mugrpo.model.policy import load_policy as load_policy
    from mugrpo.optimize.advantages import group as _group
    from mugrpo.optimize.experience import Responses as Responses
    from mugrpo.optimize.forward import batch_logprobs as batch_logprobs
    from mugrpo.optimize.gradient import micro_batches as micro_batches
    from mugrpo.optimize.learning_rate import learning_rate as learning_rate
    from mugrpo.optimize.masks import negative_advantage_veto as negative_advantage_veto
    from mugrpo.optimize.objectives.grpo import loss as _grpo
    from mugrpo.optimize.objectives.topr import loss as _topr
    from mugrpo.optimize.reduction import denominator as denominator
    from mugrpo.optimize.reduction import reduced_loss as reduced_loss
    from mugrpo.pipeline import evaluate as evaluate
    from mugrpo.pipeline import generate as generate
    from mugrpo.pipeline import optimize as _optimize
    from mugrpo.pipeline import score as score
    from mugrpo.pipeline import train as train
    from mugrpo.report import write_report as write_report
    from mugrpo.rollouts.schedule import Schedule as Schedule
    from mugrpo.rollouts.schedule import rollout_seed as rollout_seed
    from mugrpo.run.opening import open_run as open_run
    from mugrpo.run.opening import prompt_encoder as prompt_encoder
    from mugrpo.tasks import make_task as make_task

    group_advantages, grpo_loss, topr_loss, make_updates = _group, _grpo, _topr, _optimize

bound_spinning()  # here, because it must come before torch is imported

# Module -> its names here, apart from those of _RENAMED.
_NAMES = {
    "config.load": "load_config",
    "disk.errors": "RunStopped UsageError",
    "disk.metrics": "read_metrics",
    "disk.records": "FinishReason Problem Response Rollout",
    "disk.shards": "ROLLOUT_SCHEMA ShardSet read_rollouts write_rollouts",
    "engines": "make_engine",
    "engines.base": "Request",
    "model.policy": "load_policy",
    "optimize.experience": "Responses",
    "optimize.forward": "batch_logprobs",
    "optimize.gradient": "micro_batches",
    "optimize.learning_rate": "learning_rate",
    "optimize.masks": "negative_advantage_veto",
    "optimize.reduction": "denominator reduced_loss",
    "pipeline": "evaluate generate score train",
    "report": "write_report",
    "rollouts.schedule": "Schedule rollout_seed",
    "run.opening": "open_run prompt_encoder",
    "tasks": "make_task",
}
_RENAMED = {
    "group_advantages": "optimize.advantages.group",
    "grpo_loss": "optimize.objectives.grpo.loss",
    "make_updates": "pipeline.optimize",  # `mugrpo.optimize` is a package
    "topr_loss": "optimize.objectives.topr.loss",
}
_PLACES = {n: f"{module}.{n}" for module, names in _NAMES.items() for n in names.split()} | _RENAMED
__all__ = [*sorted(_PLACES)]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module 'mugrpo' has no attribute {name!r}")
        module, _, attribute = _PLACES[name].rpartition(".")
        return getattr(import_module(f"mugrpo.{module}"), attribute)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
