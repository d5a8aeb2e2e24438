"""Benchmark suites that are measured during training: `run.suites.Suites`."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from mugrpo.config.run import RunConfig
from mugrpo.config.training import SuiteUse
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import failpoint
from mugrpo.extensions.evals.options import Suite, suites_in
from mugrpo.extensions.evals.suite import measure_suite, suite_config, suite_run, with_data
from mugrpo.extensions.evals.witness import SUITE, line_of
from mugrpo.hosts.host import Host
from mugrpo.run.opening import OpenRun
from mugrpo.run.suites import suites_due


class Suites:
    """The suites that a run measures. Each is opened when it is first needed."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._opened: dict[str, tuple[Suite, OpenRun]] = {}
        self._closing = ExitStack()

    def open(self, use: SuiteUse) -> tuple[Suite, OpenRun]:
        """Return the suite, and a run of it with the model and the engine of training.

        Raises UsageError if the suite or its data cannot be read, or if it is a group.
        """
        if use.label not in self._opened:
            run = self._run
            suite = _used(run.config, use)
            config = suite_config(run.config, suite)
            opened = suite_run(run.folder, config, suite, run.progress, run.stop)
            self._opened[use.label] = (suite, self._closing.enter_context(opened))
        return self._opened[use.label]

    def preflight(self) -> Iterator[str]:
        for use in self._run.config.evaluation.suites:
            suite, suited = self.open(use)
            k, problems = suite.options.samples, len(suited.eval_problems)
            yield f"suite       {suite.name}: {problems} problems x {k}"

    def measure(self, host: Host, update: int) -> None:
        """Measure what is due after `update` updates and not in metrics.jsonl yet.

        The engines of `host` generate. The rollouts are kept as those of `mugrpo benchmark` are.
        """
        run = self._run
        for use in suites_due(run.config, update):
            kind = f"{SUITE}{use.label}"
            if run.journal.has(kind, update):
                continue
            suite, suited = self.open(use)
            draws = [(problem, 0) for problem in run.eval_problems or run.problems]
            refreshed = partial(host.engines, update, draws, "evaluation")
            folder = run.folder.benchmarks / suite.name / f"update-{update:06d}"
            with run.progress.aside():
                result = measure_suite(suited, suite, refreshed, update, folder, replace=True)
            failpoint("suite without metrics line")
            run.journal.append(kind, update, **line_of(result))

    def close(self) -> None:
        """End the processes that judge."""
        self._closing.close()


def _used(config: RunConfig, use: SuiteUse) -> Suite:
    """Return the suite as the run uses it."""
    suite, *others = suites_in(use)
    if others:
        names = ", ".join(each.name for each in (suite, *others))
        raise UsageError(f"evaluation.suites: {use.name} is a group; name its suites ({names})")
    if use.data is not None:
        suite = with_data(suite, use.data)
    temperature = config.rollouts.temperature  # so that the number is the one that training raises
    problems = {} if use.problems is None else {"problems": use.problems}
    return suite.over({"temperature": temperature, "top_p": 1.0, **problems})
