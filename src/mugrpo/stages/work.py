"""What the phases of a run work with: weights, engines, trainer, ranks and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from mugrpo.config.kept import SinkOptions
from mugrpo.disk.errors import Interrupted
from mugrpo.disk.metrics import MetricsLog
from mugrpo.run.opened import OpenRun
from mugrpo.run.sinks import Sinks
from mugrpo.run.weights import Weights
from mugrpo.stages.evaluate import evaluate_once, evaluation_due
from mugrpo.stages.logprobs import Compute
from mugrpo.stages.measures import measures_of
from mugrpo.stages.optimize import optimize_stage
from mugrpo.stages.overlap import Arrivals
from mugrpo.stages.ranks import RankProcesses, optimize_in_ranks
from mugrpo.stages.sampling import Sampling
from mugrpo.stages.stage import Stage
from mugrpo.stages.training import Training

OnMetrics = Callable[[str, int, dict[str, Any]], None]


def weights_of(run: OpenRun) -> Weights:
    """Return the run's weights, with nothing loaded yet."""
    return Weights(
        run.folder, run.config, ranks=run.ranks, notify=run.progress.say, check=run.check
    )


class Work:
    """The weights, engines, trainer and metrics of a run. Each phase gets the parts that it uses.

    If a signal interrupts the work, every update made so far is saved in a checkpoint.
    """

    def __init__(
        self,
        run: OpenRun,
        on_metrics: OnMetrics | None = None,
        training: Training | None = None,
    ) -> None:
        self.run = run
        self.training = training or Training(run, weights_of(run), run.schedule())
        self.weights = self.training.weights
        self.ranks = RankProcesses(run) if self._trains_elsewhere() else None
        self.sampling = Sampling(run, self.weights)
        if self.ranks is None:
            self.sampling.make_room = self.training.sleep
        else:
            self.ranks.sampling = self.sampling
            self.sampling.compute = self.ranks.logprobs_for_engines
        self._on_metrics = on_metrics
        update = run.folder.newest_update()
        path = run.folder.metrics if run.ranks.first else None
        self._sinks = self._open_sinks(update, required=not run.ranks.driven)
        self.metrics = MetricsLog(path, update, self._tell)  # never replaced: others hold it
        self.measures = measures_of(run, self.sampling, self.metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, Interrupted):
                self.training.save(temporary=True)
        finally:
            if self.ranks:
                self.ranks.close()
            self.sampling.close()
            self.measures.close()
            self._close_metrics()

    def stage(self, number: int) -> Stage:
        """Return a stage of the current schedule."""
        return Stage.of(self.run, number, self.training.schedule)

    @property
    def compute(self) -> Compute:
        """Return what computes logprobs of the policy after any update: the ranks, if there are."""
        return self.ranks.logprobs if self.ranks else self.weights.logprobs

    def save(self) -> None:
        """Save every update made so far in a checkpoint."""
        self.training.save()

    def evaluate_if_due(self, update: int) -> None:
        """Measure what is due after `update`: the held-out problems, and benchmark suites.

        Ranks leave this to the run that started them.
        """
        if not self.run.ranks.alone:
            return
        if evaluation_due(self.run.config, update):
            evaluate_once(self.run, self.sampling, self.metrics, update)
        self.measures.measure(update)

    def optimize(self, stage: Stage, until: int | None = None) -> None:
        """Make the stage's updates up to `until`, here or in ranks, and evaluate in between."""
        run = self.run
        if run.folder.newest_update() >= stage.end:
            run.progress.say(f"stage {stage.number}: all updates are made")
        elif self.ranks:
            optimize_in_ranks(
                run,
                stage,
                self.ranks,
                between=self.evaluate_if_due,
                handed_out=self._handed_out,
                until=until,
            )
        else:
            optimize_stage(
                run,
                stage,
                self.training,
                self.metrics,
                compute=self.compute,
                arrived=Arrivals(run, self.sampling, self.compute),
                between=self._between_updates,
                until=until,
            )

    def _between_updates(self, update: int) -> None:
        self.evaluate_if_due(update)
        self.sampling.rest()

    def _trains_elsewhere(self) -> bool:
        """Return whether the updates are made by ranks that this process starts."""
        config = self.run.config
        several = config.distributed.ranks > 1 or config.backend.clustered
        return self.run.ranks.alone and several

    @contextmanager
    def _handed_out(self) -> Iterator[None]:
        """Leave the updates, the memory and the metrics to other processes during the block."""
        self.sampling.leave(room=self.ranks is None or self.ranks.beside_engines)
        self.training.release()
        self._close_metrics()
        yield
        self.training.schedule = self.run.schedule()
        update = self.run.folder.newest_update()
        self._sinks = self._open_sinks(update, required=False)
        self.metrics.reopen(update)

    def _open_sinks(self, update: int, *, required: bool) -> Sinks:
        """Return the sinks of a run that continues after `update`. Only rank 0 has any."""
        run = self.run
        config = run.config.model_dump(mode="json")
        options = run.config.sinks if run.ranks.first else SinkOptions()
        say = run.progress.say
        return Sinks(options, run.folder.root, config, update, say, required=required)

    def _close_metrics(self) -> None:
        self.metrics.close()
        self._sinks.close()

    def _tell(self, kind: str, update: int, values: dict[str, Any]) -> None:
        self._sinks.log(kind, update, values)
        if self._on_metrics:
            self._on_metrics(kind, update, values)
