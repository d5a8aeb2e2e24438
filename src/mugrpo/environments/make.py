"""The environments of a run, built from their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mugrpo.config.base import imported
from mugrpo.config.environment import EnvironmentOptions
from mugrpo.config.mixture import asks_environment
from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Problem
from mugrpo.environments.base import Environments
from mugrpo.environments.pool import EnvironmentPool


def environments_for(
    options: EnvironmentOptions, *, own_reward: bool = False, log: Path | None = None
) -> Environments:
    """Return the environments that `options` describe, which must name some.

    They are loaded when they are first asked for anything, and raise UsageError then if that fails,
    or if `own_reward` is set and they give no reward. What they print goes to `log`, up to a
    limit, or to stderr.
    """
    assert options.given, "no environment is named"
    make = imported(options.kind.factory) if options.kind else EnvironmentPool
    environments: Environments = make(options, own_reward=own_reward, log=log)
    return environments


def environments_of(config: RunConfig, *, log: Path | None = None) -> Environments:
    """Return the environments of a run's config, which must name some."""
    own_reward = asks_environment(config.task)
    return environments_for(config.environment, own_reward=own_reward, log=log)


def tools_of(config: RunConfig) -> Sequence[Mapping[str, Any]]:
    """Return the schemas of the tools of a run's environment."""
    environments = environments_of(config)
    try:
        return environments.tools
    finally:
        environments.close()


def row_of(problem: Problem) -> dict[str, Any]:
    """Return what `reset` gets of a problem: the columns, "prompt" and, if it has one, "answer"."""
    prompt = problem.prompt if isinstance(problem.prompt, str) else list(problem.prompt)
    answer = {"answer": problem.answer} if problem.answer else {}
    return {**answer, **problem.columns, "prompt": prompt}
