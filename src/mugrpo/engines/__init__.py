"""Engines by name."""

from __future__ import annotations

from mugrpo.config.engines import EngineOptions, HFOptions
from mugrpo.engines.base import Engine
from mugrpo.engines.hf import HFEngine
from mugrpo.policy import Policy


def make_engine(policy: Policy, options: EngineOptions) -> Engine:
    """The engine that `options` describes, sampling from `policy`."""
    assert isinstance(options, HFOptions), f"no engine for {type(options).__name__}"
    return HFEngine(policy, options)
