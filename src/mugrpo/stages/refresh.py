"""A refresh: the engines get the policy's weights, and the canary checks that they have them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from mugrpo.engines.base import Engine
from mugrpo.rollouts.sampler import Draw, Sampler
from mugrpo.run.opened import OpenRun
from mugrpo.stages.canary import Mismatch, canary, canary_rollouts
from mugrpo.stages.sampling import Sampling


def refreshed(
    run: OpenRun, sampling: Sampling, update: int, groups: Sequence[Draw], stage: str
) -> tuple[Sequence[Engine], dict[str, Any]]:
    """Return the engines with the policy after `update` updates, and notes on the refresh.

    The canary samples responses to the first of `groups`, seeded as those of `stage`. If it rejects
    engines that took the weights while they ran, they are started again, now and at every later
    refresh. The notes are the canary's gap and the seconds of the refresh, by its parts. Raises
    RunStopped if the canary rejects engines that have just been started.
    """
    engines = sampling.refresh(update)
    try:
        return engines, _checked(run, sampling, engines, update, groups, stage)
    except Mismatch:
        if not sampling.distrust_reloads():
            raise
    run.progress.say(
        "the canary found other weights than the policy's after an engine took new ones while it "
        "ran; from now on every refresh starts a new engine"
    )
    engines = sampling.refresh(update)
    return engines, _checked(run, sampling, engines, update, groups, stage)


def _checked(
    run: OpenRun,
    sampling: Sampling,
    engines: Sequence[Engine],
    update: int,
    groups: Sequence[Draw],
    stage: str,
) -> dict[str, Any]:
    """Run the canary. Return its gap, and the seconds of the refresh by its parts."""
    began, config = time.monotonic(), run.config
    samplers = [
        Sampler(
            engine,
            run.prompts,
            seed=config.seed,
            stage=stage,
            group_size=1,
            temperature=config.rollouts.temperature,
            max_new_tokens=config.rollouts.max_new_tokens,
            policy_step=update,
        )
        for engine in engines
    ]
    gap = canary(
        canary_rollouts(samplers, groups, config.engine, lambda _: run.stop.check()),
        partial(sampling.trainer_logprobs, update),
        precision=config.model.precision,
        tolerance=config.canary_tolerance,
        warning=config.engine.canary_warning,
        say=run.progress.say,
    )
    # An evaluation may have refreshed the engines to this policy already. That counts here.
    spent = {**sampling.spent, "canary": time.monotonic() - began}
    return {"canary_gap": gap, "refresh_seconds": sum(spent.values()), "refresh_parts": spent}
