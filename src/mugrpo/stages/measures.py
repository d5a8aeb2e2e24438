"""What is measured during training besides the held-out problems: `evaluation.suites`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mugrpo.config.base import imported
from mugrpo.config.extensions import installed
from mugrpo.config.kept import SuiteUse
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import MetricsLog, read_metrics
from mugrpo.run.opened import OpenRun
from mugrpo.stages.evaluate import evaluation_due
from mugrpo.stages.sampling import Sampling

# Measures with the same values of these can be compared.
_SETTINGS = ("problems", "samples", "temperature", "top_p", "max_new_tokens")


class Measures(Protocol):
    """The suites that a run measures."""

    def preflight(self) -> Iterator[str]:
        """Read the problems and references of all suites, and yield a sentence for each."""
        ...

    def measure(self, update: int) -> None:
        """Measure what is due after `update` updates and not in metrics.jsonl yet."""

    def close(self) -> None:
        """End the processes that judge."""


class _None:
    def preflight(self) -> Iterator[str]:
        yield from ()

    def measure(self, update: int) -> None:
        pass

    def close(self) -> None:
        pass


def measures_of(run: OpenRun, sampling: Sampling, metrics: MetricsLog) -> Measures:
    """Return what measures the suites of `run`. Raises UsageError if no extension does."""
    if not run.config.evaluation.suites:
        return _None()
    for extension in installed().values():
        if extension.measures:
            measures: Measures = imported(extension.measures)(run, sampling, metrics)
            return measures
    raise UsageError("evaluation.suites needs the extension evals; leave it out, or install that")


def measuring_due(config: RunConfig, update: int) -> bool:
    """Return whether anything is measured after `update` updates."""
    return evaluation_due(config, update) or bool(suites_due(config, update))


def suites_due(config: RunConfig, update: int) -> list[SuiteUse]:
    """Return the suites to measure after `update` updates: each at its period, and at both ends."""
    ends = (0, config.schedule.total_updates)
    return [
        use
        for use in config.evaluation.suites
        if update in ends or (use.every and update % use.every == 0)
    ]


def best_update(run: OpenRun) -> set[int]:
    """Return the update whose checkpoint did best on checkpoint.best, the earliest if several did.

    Only measurements with the settings of the newest count. The set is empty if no checkpoint has
    been measured.
    """
    kind, saved = f"suite/{run.config.checkpoint.best}", run.folder.checkpoint_updates()
    lines = [line for line in read_metrics(run.folder.metrics) if line["kind"] == kind]
    settings = [{name: line.get(name) for name in _SETTINGS} for line in lines]
    known = [
        (line["accuracy"], -line["update"])
        for line, setting in zip(lines, settings, strict=True)
        if setting == settings[-1] and line["update"] in saved and line.get("accuracy") is not None
    ]
    return {-max(known)[1]} if known else set()


def best_may_change(config: RunConfig, update: int) -> bool:
    """Return whether the suite of checkpoint.best is measured after `update` updates."""
    return any(use.label == config.checkpoint.best for use in suites_due(config, update))
