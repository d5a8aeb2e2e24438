"""The benchmark suites that a run measures while it trains. An extension measures them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from mugrpo.config.base import imported, installed
from mugrpo.config.run import RunConfig
from mugrpo.config.training import SuiteUse
from mugrpo.disk.errors import UsageError

if TYPE_CHECKING:
    from mugrpo.run.opening import OpenRun


class Suites(Protocol):
    """The suites that a run measures."""

    def preflight(self) -> Iterator[str]:
        """Read the problems and references of all suites, and yield a sentence for each."""
        ...

    def measure(self, host: Any, update: int) -> None:
        """Measure on `host` what is due after `update` updates and has no line of metrics yet."""

    def close(self) -> None:
        """End the processes that judge."""


def suites_of(run: OpenRun) -> Suites | None:
    """Return what measures the suites of `run`, if it has any. Raises UsageError if nothing can."""
    if not run.config.evaluation.suites:
        return None
    for extension in installed().values():
        if extension.measures:
            measures: Suites = imported(extension.measures)(run)
            return measures
    raise UsageError("evaluation.suites needs the extension evals; leave it out, or install that")


def evaluation_due(config: RunConfig, update: int) -> bool:
    """Return whether to evaluate after `update` updates: after 0, every N, and at the end."""
    every, total = config.evaluation.every, config.schedule.total_updates
    return every > 0 and (update % every == 0 or update == total)


def suites_due(config: RunConfig, update: int) -> list[SuiteUse]:
    """Return the suites to measure after `update` updates: each at its period, and at both ends."""
    ends = (0, config.schedule.total_updates)
    return [
        use
        for use in config.evaluation.suites
        if update in ends or (use.every and update % use.every == 0)
    ]


def measuring_due(config: RunConfig, update: int) -> bool:
    """Return whether anything is measured after `update` updates."""
    return evaluation_due(config, update) or bool(suites_due(config, update))
