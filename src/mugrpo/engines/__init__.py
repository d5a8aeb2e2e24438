"""Engines by name."""

from __future__ import annotations

from collections.abc import Callable

from mugrpo.config.engines import ContinuousOptions, EngineOptions, HFOptions
from mugrpo.engines.base import Engine
from mugrpo.engines.continuous import ContinuousEngine, unfit
from mugrpo.engines.hf import HFEngine
from mugrpo.policy import Policy


def make_engine(
    policy: Policy, options: EngineOptions, notify: Callable[[str], None] = lambda _: None
) -> Engine:
    """The engine that `options` describes, sampling from `policy`.

    A model that continuous batching cannot decode gets the plain engine, and one line says why.
    """
    if isinstance(options, ContinuousOptions):
        reason = unfit(policy)
        if reason is None:
            return ContinuousEngine(policy, options)
        notify(f"this model is sampled in static batches: in slots {reason}")
        return HFEngine(policy, HFOptions(batch_size=options.slots))
    assert isinstance(options, HFOptions), f"no engine for {type(options).__name__}"
    return HFEngine(policy, options)
