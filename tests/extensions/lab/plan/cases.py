"""A machine, a model and a config whose costs are easy to work out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.extensions.lab.plan.counts import Shape
from mugrpo.extensions.lab.plan.lengths import Lengths
from mugrpo.extensions.lab.plan.machine import Machine
from mugrpo.extensions.lab.plan.planner import Planner

# 132 parameters that every token passes, a head of 28, 24 operations for a pair, 24 bytes for a
# token's keys and values.
TINY = Shape(
    hidden=4, layers=1, heads=2, kv_heads=1, head_dim=3, intermediate=5, vocab=7, tied=True
)
FAST = 1e30  # a rate that costs nothing


def machine(**changes: Any) -> Machine:
    """Return a machine that makes 1,000 operations a second and has overheads, and nothing else.

    Keys of `changes` are those of a table, the rates first and the shares last, or of Machine.
    """
    tables: dict[str, dict[str, float]] = {
        "rates": dict.fromkeys(("memory", "link", "network", "disk"), FAST)
        | {"fp32": 1000.0, "bf16": 2000.0},
        "shares": dict.fromkeys(("decode", "update", "memory", "link"), 1.0),
        "overheads": {
            "step": 1.0,
            "sequence": 0.5,
            "request": 2.0,
            "micro_batch": 1.0,
            "update": 2.0,
            "refresh": 100.0,
            "start": 0.0,
            "score": 0.25,
        },
    }
    raw: dict[str, Any] = {
        "name": "by hand",
        "kind": "cpu",
        "devices": 1,
        "per_machine": 8,
        "memory_gib": 80.0,
        "sources": dict.fromkeys((*tables, "memory_gib"), "this file"),
        **tables,
    }
    for name, value in changes.items():
        order = (tables[table] for table in ("rates", "overheads", "shares"))
        owner = next((table for table in order if name in table), raw)
        owner[name] = value
    return Machine.model_validate(raw)


def config(**groups: Any) -> RunConfig:
    """Return a config of 8 updates of 2 problems x 2 responses, without evaluations."""
    schedule = {
        "stages": 2,
        "batches_per_stage": 4,
        "growth": 1.0,
        "problems_per_update": 2,
        "group_size": 2,
    }
    raw: dict[str, Any] = {
        "preset": "grpo",
        "schedule": schedule,
        "evaluation": {"every": 0},
    }
    for name, group in groups.items():
        raw[name] = {**raw.get(name, {}), **group} if isinstance(group, dict) else group
    return build_config(raw, "a test")


def planner(
    *,
    prompt: int = 2,
    responses: tuple[int, ...] = (3,),
    on: Machine | None = None,
    **groups: Any,
) -> Planner:
    """Return a planner of groups of two equal responses: one group for each number."""
    pairs = np.array([[n, n] for n in responses])
    lengths = Lengths(np.full(len(responses), prompt), pairs, "a test")
    return Planner(config(**groups), TINY, on or machine(), lengths)
