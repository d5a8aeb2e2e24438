"""Benchmark suites that are measured during training, and the checkpoint that did best on one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from mugrpo.config.kept import SuiteUse
from mugrpo.config.run import RunConfig
from mugrpo.config.suites import Suite, load_suites
from mugrpo.disk.errors import UsageError
from mugrpo.disk.journal import forget
from mugrpo.disk.metrics import MetricsLog, read_metrics
from mugrpo.disk.places import passing
from mugrpo.run.opened import OpenRun
from mugrpo.run.trust import require_trusted, theirs_in
from mugrpo.stages.refresh import refreshed
from mugrpo.stages.results import line_of
from mugrpo.stages.sampling import Sampling
from mugrpo.stages.suites import measure_suite, suite_config, suite_run
from mugrpo.tasks.stand_in import with_data


def suites_due(config: RunConfig, update: int) -> list[SuiteUse]:
    """Return the suites to measure after `update` updates: each at its period, and at both ends."""
    ends = (0, config.schedule.total_updates)
    return [
        use
        for use in config.evaluation.suites
        if update in ends or (use.every and update % use.every == 0)
    ]


def used_suite(config: RunConfig, use: SuiteUse) -> Suite:
    """Return the suite as the run uses it.

    Raises UsageError if it or its data cannot be read, or if it is a group of suites.
    """
    suite, *others = load_suites(use.name)
    if others:
        names = ", ".join(each.name for each in (suite, *others))
        raise UsageError(f"evaluation.suites: {use.name} is a group; name its suites ({names})")
    if use.data is not None:
        suite = with_data(suite, use.data)
    return suite.adjusted(
        problems=use.problems,
        samples=use.samples,
        max_new_tokens=use.max_new_tokens,
        temperature=use.temperature or config.rollouts.temperature,
        top_p=use.top_p,
    )


def measure_once(
    run: OpenRun, sampling: Sampling, metrics: MetricsLog, use: SuiteUse, update: int
) -> None:
    """Measure the policy after `update` updates, unless the metrics have the result.

    The rollouts are made by the run's engines, and kept as those of `mugrpo benchmark` are.
    """
    kind = kind_of(use)
    if metrics.has(kind, update):
        return
    suite = used_suite(run.config, use)
    folder = run.folder.benchmarks / suite.name / f"update-{update:06d}"
    if folder.exists() and update not in (0, *run.folder.checkpoint_updates()):
        forget(folder)  # the updates since the last checkpoint were lost, and may differ in a bit
        shutil.rmtree(folder)
    draws = [(problem, 0) for problem in run.eval_problems or run.problems]
    with run.progress.aside(), opened_suite(run, suite) as suited:
        result = measure_suite(
            suited,
            suite,
            lambda: refreshed(run, sampling, update, draws, "evaluation"),
            update,
            folder,
        )
    passing("suite without metrics line")
    metrics.append(kind, update, **line_of(result))


@contextmanager
def opened_suite(run: OpenRun, suite: Suite) -> Iterator[OpenRun]:
    """Yield a run of the suite with the model and the engine of `run`.

    Raises UsageError as `suite_run` does, and for code in someone else's suite file that this user
    has neither used nor approved.
    """
    config = suite_config(run.config, suite)
    require_trusted(config, theirs_in(suite.file, config), trust=False, say=run.progress.say)
    with suite_run(run.folder, config, suite, run.progress, run.stop) as suited:
        yield suited


def kind_of(use: SuiteUse) -> str:
    """Return the kind of the suite's lines in metrics.jsonl."""
    return f"suite/{use.label}"


def best_update(run: OpenRun) -> int | None:
    """Return the update whose checkpoint did best on checkpoint.best, the earliest if several did.

    Return None if there is no such option, or no checkpoint has been measured.
    """
    kind, saved = f"suite/{run.config.checkpoint.best}", run.folder.checkpoint_updates()
    lines = read_metrics(run.folder.metrics) if run.config.checkpoint.best else ()
    measured = [line for line in lines if line["kind"] == kind and line["update"] in saved]
    known = [line for line in measured if line.get("accuracy") is not None]
    if not known:
        return None
    best: int = max(known, key=lambda line: (line["accuracy"], -line["update"]))["update"]
    return best


def best_may_change(config: RunConfig, update: int) -> bool:
    """Return whether the suite of checkpoint.best is measured after `update` updates."""
    return any(use.label == config.checkpoint.best for use in suites_due(config, update))
