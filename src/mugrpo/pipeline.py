"""The stage loop. If it is not published, do it.

    for each stage:
        generate   every missing rollout shard, with the policy at the stage's first update
        score      every missing score shard; dynamic sampling may then ask for more shards
        plan       which rollouts each update trains on
        logprobs   those of other policies that the objective needs
        optimize   from the newest checkpoint to the end of the stage, which `stage_until` may
                   bring forward

Generation and optimization never call each other: they meet at the stage's shards on disk. Each
step looks at what is published and does the rest. So a run that was killed anywhere continues from
there, and any step can run alone, elsewhere or again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Self

from mugrpo.config.kept import SinkOptions
from mugrpo.disk.errors import Interrupted
from mugrpo.disk.metrics import MetricsLog
from mugrpo.disk.publishing import remove_unfinished
from mugrpo.run.opened import OpenRun
from mugrpo.run.sinks import Sinks
from mugrpo.run.weights import Weights
from mugrpo.stages.evaluate import evaluate as evaluate_policy
from mugrpo.stages.evaluate import evaluate_once, evaluation_due
from mugrpo.stages.generate import generate_stage, mend_past_stage, sample_stage, score_stage
from mugrpo.stages.logprobs import Compute, logprobs_stage, require_logprobs
from mugrpo.stages.optimize import optimize_stage
from mugrpo.stages.orders import answer_logprobs, ordered_rollouts, orders
from mugrpo.stages.overlap import Arrivals, generated_beside
from mugrpo.stages.plan import plan_stage, require
from mugrpo.stages.ranks import RankProcesses, optimize_in_ranks
from mugrpo.stages.sampling import Sampling
from mugrpo.stages.stage import Stage
from mugrpo.stages.training import Training

OnMetrics = Callable[[str, int, dict[str, Any]], None]


def train(run: OpenRun, on_metrics: OnMetrics | None = None) -> None:
    """Do everything in the run that is not done yet.

    `on_metrics` is called with the kind, the update and the values of each metrics line.
    """
    with Work(run, on_metrics) as work:
        update = run.folder.newest_update()
        if update:
            run.progress.say(f"resuming from {run.folder.checkpoint(update)}")
        current = work.training.schedule.stage_of(update)
        run.task.prepare()
        if work.ranks is None:
            work.weights.load()  # the canary uses the model that trains
        elif run.config.backend.name != "ray":
            work.ranks.start()  # they load the model while the engines start
        for number in range(current):
            mend_past_stage(run, work.stage(number), work.sampling, work.metrics)
        work.evaluate_if_due(update)
        for number in count(current):
            stage = work.stage(number)
            if stage.first_update == run.config.schedule.total_updates:
                break
            if run.config.overlap:
                with generated_beside(run, stage, work.sampling, work.metrics):
                    work.optimize(stage)
            else:
                sample_stage(run, stage, work.sampling, work.metrics)
                work.sampling.rest()
                logprobs_stage(stage, work.compute, run.progress)
                work.optimize(stage)
    run.folder.settle()
    assert run.folder.newest_update() == run.config.schedule.total_updates


def generate(run: OpenRun, number: int) -> None:
    """Publish the missing rollout shards of a stage. This needs no trainer."""
    with Sampling(run, weights_of(run)) as sampling:
        generate_stage(run, Stage.of(run, number), sampling)


def score(run: OpenRun, number: int, *, again: bool = False) -> None:
    """Publish the missing score shards of a stage, or all of them if `again`.

    Raises UsageError if rollouts are missing.
    """
    with Work(run) as work:
        stage = work.stage(number)
        require(stage, "rollouts")
        run.task.prepare()
        if again and stage.begun():
            run.progress.say(f"stage {number}: updates made on the old scores stay as they are")
        score_stage(run, stage, work.metrics, again=again)


def optimize(run: OpenRun, number: int, *, until: int | None = None) -> None:
    """Make the missing updates of a stage, up to `until`.

    Raises UsageError if rollouts or scores are missing.
    """
    with Work(run) as work:
        stage = work.stage(number)
        require(stage, "rollouts")
        require(stage, "scores")
        if run.ranks.alone and run.config.evaluation.every:
            run.task.prepare()
        if run.ranks.first:
            plan_stage(stage, run.progress.say)
        if run.ranks.alone:
            logprobs_stage(stage, work.compute, run.progress)
        else:
            run.ranks.wait()  # for the plan
            require_logprobs(stage, run.ranks.size)
        work.optimize(stage, until)
        work.save()  # the next command needs it
    run.folder.settle()


def follow(run: OpenRun) -> None:
    """Obey the orders of the run that started this rank, until it says to end.

    Weights and optimizer stay in memory from one order to the next.
    """
    if run.ranks.first:
        remove_unfinished(run.folder.checkpoints)  # ranks before these may have been lost
    training = Training(run, weights_of(run), run.schedule())
    trainer = training.at(run.folder.newest_update())
    trainer.sleep()
    for order in orders(run):
        trainer.wake(moments=order.task == "optimize")
        if order.task == "logprobs":
            rollouts = ordered_rollouts(run.folder)
            logprobs = training.weights.logprobs(order.update, rollouts)
            if run.ranks.first:
                answer_logprobs(run.folder, logprobs)
        else:
            with Work(run, training=training) as work:
                work.optimize(work.stage(order.stage), order.update)
                work.save()
            if run.folder.pending:
                run.folder.pending.ready()  # engines may read the model then
        trainer.sleep()


def evaluate(run: OpenRun, update: int, *, again: bool = True) -> dict[str, Any]:
    """Measure the accuracy of the policy after `update` updates; see `stages.evaluate`.

    Without `again`, return {} if metrics.jsonl has this evaluation already. It keeps the first one.
    """
    with Work(run) as work:
        measured = work.metrics.has("evaluation", update)
        if measured and not again:
            return {}
        run.task.prepare()
        result = evaluate_policy(run, work.sampling, update)
        if not measured:
            work.metrics.append("evaluation", update, **result)
    return result


def weights_of(run: OpenRun) -> Weights:
    """Return the run's weights, with nothing loaded yet."""
    return Weights(
        run.folder, run.config, ranks=run.ranks, notify=run.progress.say, check=run.stop.check
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
        if self.ranks:
            self.ranks.sampling = self.sampling
            if run.config.backend.name != "ray":  # where ranks end, to make room for the engines
                self.sampling.compute = self.ranks.logprobs
        self._on_metrics = on_metrics
        update = run.folder.newest_update()
        path = run.folder.metrics if run.ranks.first else None
        self._sinks = self._open_sinks(update)
        self.metrics = MetricsLog(path, update, self._tell)  # never replaced: others hold it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, Interrupted):
                self.save()
        finally:
            if self.ranks:
                self.ranks.close()
            self.sampling.close()
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
        if self.training.unsaved():
            self.training.save(self.metrics)

    def evaluate_if_due(self, update: int) -> None:
        """Evaluate if an evaluation is due. Ranks leave this to the run that started them."""
        if evaluation_due(self.run.config, update) and self.run.ranks.alone:
            evaluate_once(self.run, self.sampling, self.metrics, update)

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
        several = config.distributed.processes > 1 or config.backend.name == "ray"
        return self.run.ranks.alone and several

    @contextmanager
    def _handed_out(self) -> Iterator[None]:
        """Leave the updates, the memory and the metrics to other processes during the block."""
        self.sampling.leave()
        self.training.release()
        self._close_metrics()
        yield
        self.training.schedule = self.run.schedule()
        update = self.run.folder.newest_update()
        self._sinks = self._open_sinks(update)
        self.metrics.reopen(update)

    def _open_sinks(self, update: int) -> Sinks:
        """Return the sinks of a run that continues after `update`. Only rank 0 has any."""
        run = self.run
        config = run.config.model_dump(mode="json")
        options = run.config.sinks if run.ranks.first else SinkOptions()
        return Sinks(options, run.folder.root, config, update, run.progress.say)

    def _close_metrics(self) -> None:
        self.metrics.close()
        self._sinks.close()

    def _tell(self, kind: str, update: int, values: dict[str, Any]) -> None:
        self._sinks.log(kind, update, values)
        if self._on_metrics:
            self._on_metrics(kind, update, values)
