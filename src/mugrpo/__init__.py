"""Reinforcement learning of language models in few large stages: the documented Python API.

docs/api.md has a line for each name. A name is imported when it is first used, so that
`import mugrpo` loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mugrpo.config.cores import bound_spinning

if TYPE_CHECKING:
    from mugrpo.config.load import load_config
    from mugrpo.disk.errors import RunStopped, UsageError
    from mugrpo.disk.metrics import read_metrics
    from mugrpo.disk.records import Answer, FinishReason, Problem, Rollout
    from mugrpo.disk.shards import ROLLOUT_SCHEMA, ShardSet, read_rollouts, write_rollouts
    from mugrpo.engines import make_engine
    from mugrpo.engines.base import Request
    from mugrpo.model.policy import load_policy
    from mugrpo.optimize.advantages import group as group_advantages
    from mugrpo.optimize.experience import Responses
    from mugrpo.optimize.forward import batch_logprobs
    from mugrpo.optimize.gradient import micro_batches
    from mugrpo.optimize.loss import denominator, reduced_loss
    from mugrpo.optimize.objectives.grpo import loss as grpo_loss
    from mugrpo.optimize.objectives.topr import loss as topr_loss
    from mugrpo.optimize.ratios import negative_advantage_veto
    from mugrpo.optimize.trainer import learning_rate
    from mugrpo.pipeline import evaluate, generate, score, train
    from mugrpo.pipeline import optimize as make_updates
    from mugrpo.report import write_report
    from mugrpo.rollouts.schedule import Schedule, rollout_seed
    from mugrpo.run.opening import open_run, prompt_encoder
    from mugrpo.tasks import make_task

bound_spinning()  # here, because it must come before torch is imported

__all__ = [
    "ROLLOUT_SCHEMA",
    "Answer",
    "FinishReason",
    "Problem",
    "Request",
    "Responses",
    "Rollout",
    "RunStopped",
    "Schedule",
    "ShardSet",
    "UsageError",
    "batch_logprobs",
    "denominator",
    "evaluate",
    "generate",
    "group_advantages",
    "grpo_loss",
    "learning_rate",
    "load_config",
    "load_policy",
    "make_engine",
    "make_task",
    "make_updates",
    "micro_batches",
    "negative_advantage_veto",
    "open_run",
    "prompt_encoder",
    "read_metrics",
    "read_rollouts",
    "reduced_loss",
    "rollout_seed",
    "score",
    "topr_loss",
    "train",
    "write_report",
    "write_rollouts",
]

# Name -> where it lives. `mugrpo.optimize` is a package, so that phase is `make_updates` here.
_PLACES = {
    "Answer": "disk.records.Answer",
    "FinishReason": "disk.records.FinishReason",
    "Problem": "disk.records.Problem",
    "ROLLOUT_SCHEMA": "disk.shards.ROLLOUT_SCHEMA",
    "Request": "engines.base.Request",
    "Responses": "optimize.experience.Responses",
    "Rollout": "disk.records.Rollout",
    "RunStopped": "disk.errors.RunStopped",
    "Schedule": "rollouts.schedule.Schedule",
    "ShardSet": "disk.shards.ShardSet",
    "UsageError": "disk.errors.UsageError",
    "batch_logprobs": "optimize.forward.batch_logprobs",
    "denominator": "optimize.loss.denominator",
    "evaluate": "pipeline.evaluate",
    "generate": "pipeline.generate",
    "group_advantages": "optimize.advantages.group",
    "grpo_loss": "optimize.objectives.grpo.loss",
    "learning_rate": "optimize.trainer.learning_rate",
    "load_config": "config.load.load_config",
    "load_policy": "model.policy.load_policy",
    "make_engine": "engines.make_engine",
    "make_task": "tasks.make_task",
    "make_updates": "pipeline.optimize",
    "micro_batches": "optimize.gradient.micro_batches",
    "negative_advantage_veto": "optimize.ratios.negative_advantage_veto",
    "open_run": "run.opening.open_run",
    "prompt_encoder": "run.opening.prompt_encoder",
    "read_metrics": "disk.metrics.read_metrics",
    "read_rollouts": "disk.shards.read_rollouts",
    "reduced_loss": "optimize.loss.reduced_loss",
    "rollout_seed": "rollouts.schedule.rollout_seed",
    "score": "pipeline.score",
    "topr_loss": "optimize.objectives.topr.loss",
    "train": "pipeline.train",
    "write_report": "report.write_report",
    "write_rollouts": "disk.shards.write_rollouts",
}

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module 'mugrpo' has no attribute {name!r}")
        module, _, attribute = _PLACES[name].rpartition(".")
        return getattr(import_module(f"mugrpo.{module}"), attribute)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
