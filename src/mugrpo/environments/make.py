"""The environments of a run, built from their options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mugrpo.config.environment import EnvironmentOptions
from mugrpo.disk.records import Problem
from mugrpo.environments.base import Environments
from mugrpo.environments.held import HeldEnvironments
from mugrpo.environments.pool import EnvironmentPool
from mugrpo.environments.verifiers.pool import VerifiersEnvironments
from mugrpo.rewards.functions import NONE_HELD, Held


def environments_for(
    options: EnvironmentOptions,
    *,
    own_reward: bool = False,
    log: Path | None = None,
    held: Held = NONE_HELD,
) -> Environments:
    """Return the environments that `options` describe, which must name some.

    They are loaded when they are first asked for anything, and raise UsageError then if that fails,
    or if `own_reward` is set and they give no reward. `held` has code that only this process has;
    if `options` name such code, the environments are in this process. What others print goes to
    `log`, up to a limit, or to stderr.
    """
    assert options.given, "no environment is named"
    if options.held:
        return HeldEnvironments(options, held, own_reward=own_reward)
    if options.verifiers is not None:
        return VerifiersEnvironments(options, own_reward=own_reward, log=log)
    return EnvironmentPool(options, own_reward=own_reward, log=log)


def row_of(problem: Problem) -> dict[str, Any]:
    """Return what `reset` gets of a problem: the columns, "prompt" and "answer"."""
    prompt = problem.prompt if isinstance(problem.prompt, str) else list(problem.prompt)
    return {"answer": problem.answer, **problem.columns, "prompt": prompt}
