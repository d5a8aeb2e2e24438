"""The stage loop. If it is not published, do it.

    for each stage:
        generate   every missing rollout shard, with the policy at the stage's first update
        score      every missing score shard
        logprobs   those of other policies that the objective needs
        optimize   from the newest checkpoint to the end of the stage

Generation and optimization never call each other: they meet at the stage's shards on disk. Each
step looks at what is published and does the rest. So a run that was killed anywhere continues from
there, and any step can run alone, elsewhere or again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import fmean
from typing import Any, Self

from mugrpo.config.engines import OwnEngineOptions
from mugrpo.config.training import SinkOptions
from mugrpo.disk.errors import Interrupted
from mugrpo.disk.metrics import EVALUATION, MetricsLog, read_metrics
from mugrpo.disk.publishing import remove_unfinished
from mugrpo.engines import make_engine
from mugrpo.report.readable import rounded
from mugrpo.run.estimate import longest_seconds
from mugrpo.run.opening import OpenRun
from mugrpo.run.signs import Signs
from mugrpo.run.sinks import Sinks
from mugrpo.run.weights import Weights, weights_at
from mugrpo.stages.evaluate import evaluate as evaluate_policy
from mugrpo.stages.evaluate import evaluate_once, evaluation_due, measures_of
from mugrpo.stages.generate import generate_stage, prepare_stage, remake_past_stage, score_stage
from mugrpo.stages.logprobs import Compute, logprobs_stage
from mugrpo.stages.optimize import optimize_stage
from mugrpo.stages.orders import Order, answer_logprobs, ordered_rollouts, orders
from mugrpo.stages.overlap import ShardWait, generated_beside
from mugrpo.stages.preflight import preflight
from mugrpo.stages.ranks import RankProcesses, optimize_in_ranks
from mugrpo.stages.sampling import Sampling
from mugrpo.stages.stage import Stage
from mugrpo.stages.training import Training

_PROMPTS = 64  # whose lengths say how long a prompt is
_LONG = 3600.0  # seconds of a run from which `check` says how to shorten it
_SHORTER = (
    "to shorten: lower schedule.batches_per_stage, schedule.problems_per_update, "
    "rollouts.max_new_tokens, or task.eval_problems"
)

OnMetrics = Callable[[str, int, dict[str, Any]], None]


def train(run: OpenRun, on_metrics: OnMetrics | None = None) -> None:
    """Do everything in the run that is not done yet.

    `on_metrics` is called with the kind, the update and the values of each metrics line, but
    for those that ranks write. Raises RunStopped if the run cannot go on now or was asked to stop,
    and UsageError if its config does not fit the machine, the data or the rewards.
    """
    config = run.config
    run.progress.say(
        f"{config.method}, {config.task.name}, model {config.model.path}: "
        f"{config.schedule.total_updates} updates, {config.optimizer.lr_schedule} learning rate "
        f"from {config.optimizer.lr:g}"
    )
    with Work(run, on_metrics) as work:
        update = run.folder.newest_update()
        if update:
            run.progress.say(f"resuming from {run.folder.checkpoint(update)}")
        current = config.schedule.stage_of(update)
        _prepare(run)
        if update < config.schedule.total_updates:
            preflight(run, work.measures)
        if work.ranks is None:
            run.progress.say(f"loading the model {run.config.model.path}")
            work.weights.load()  # the canary uses the model that trains
        elif work.ranks.beside_engines:
            work.ranks.load()  # beside the engines, unless they share GPUs
        for number in range(current):
            remake_past_stage(run, Stage.of(run, number), work.sampling, work.metrics)
        # before generation: with overlap, an evaluation would wait for the stage's rollouts
        work.evaluate_if_due(update)
        for number in range(current, config.schedule.stages):
            stage = Stage.of(run, number)
            if config.overlap:
                with generated_beside(run, stage, work.sampling, work.metrics):
                    work.optimize(stage)
            else:
                prepare_stage(run, stage, work.sampling, work.metrics)
                work.sampling.rest()
                logprobs_stage(stage, work.compute, run.progress)
                work.optimize(stage)
    run.folder.settle()
    assert run.folder.newest_update() == config.schedule.total_updates
    weights_at(run.folder, config.model, config.schedule.total_updates)  # verifies it


def _prepare(run: OpenRun) -> None:
    """Load what judging needs, and say what the user should know of it."""
    for sentence in run.task.prepare(run.folder.log("rewards")):
        run.progress.say(sentence)


def check(run: OpenRun) -> str:
    """Try what `train` tries before its first rollout, and say what came of it.

    Return how many updates and rollouts the run has, and about how long it takes at most.
    """
    schedule = run.config.schedule
    with Work(run) as work:
        _prepare(run)
        preflight(run, work.measures, verbose=True)
        if work.ranks is None:  # those load the model on their own
            run.progress.say(f"loading the model {run.config.model.path}")
            policy = work.weights.load()
            if isinstance(run.config.engine, OwnEngineOptions):
                make_engine(policy, run.config.engine)
    updates = schedule.total_updates
    groups = sum(sum(map(len, Stage.of(run, n).drawn)) for n in range(schedule.stages))
    rollouts = groups * schedule.group_size
    prompts = [len(run.prompts(problem)) for problem in run.problems[:_PROMPTS]]
    seconds = longest_seconds(run.config, fmean(prompts), len(run.eval_problems))
    if seconds > _LONG:
        run.progress.say(_SHORTER)
    return f"{updates:,} updates, {rollouts:,} rollouts, at most about {rounded(seconds)}"


def generate(run: OpenRun, number: int) -> None:
    """Publish the missing rollout shards of stage `number` (from 0). This needs no trainer.

    Raises UsageError if the run has not reached the update that the stage begins from, RunStopped
    if that checkpoint is gone or damaged, or if an engine cannot go on.
    """
    with Sampling(run, weights_of(run)) as sampling:
        generate_stage(run, Stage.of(run, number), sampling)


def score(run: OpenRun, number: int, *, again: bool = False) -> None:
    """Publish the missing score shards of stage `number` (from 0), or all of them if `again`.

    Raises UsageError if rollouts are missing, RunStopped if too many responses get no verdict.
    """
    with Work(run) as work:
        stage = Stage.of(run, number)
        stage.require("rollouts")
        _prepare(run)
        if again and stage.begun():
            run.progress.say(f"stage {number}: updates made on the old scores stay as they are")
        score_stage(run, stage, work.metrics, again=again)


def optimize(run: OpenRun, number: int, *, until: int | None = None) -> None:
    """Make the missing updates of stage `number` (from 0), and save a checkpoint.

    `until` is the number of updates of the whole run after which to stop, by default those at the
    stage's end. Raises UsageError if rollouts or scores are missing.
    """
    with Work(run) as work:
        stage = Stage.of(run, number)
        stage.require("rollouts")
        stage.require("scores")
        if run.config.evaluation.every:
            _prepare(run)
        logprobs_stage(stage, work.compute, run.progress)
        work.optimize(stage, until)
        work.save()  # the next command needs it
    run.folder.settle()


def follow(run: OpenRun) -> None:
    """Obey the orders of the run that started this rank, until it says to end.

    Weights and optimizer stay in memory from one order to the next. Before it ends, all updates
    are saved.
    """
    if run.ranks.first:
        remove_unfinished(run.folder.checkpoints)  # ranks before these may have been lost
    training = Training(run, weights_of(run))
    training.at(run.folder.newest_update())
    training.sleep()
    try:
        for order in orders(run):
            _obey(run, training, order)
            training.sleep()
    except Interrupted:  # between orders; during one, Work has saved
        training.save(temporary=True)
        raise
    training.save()


def _obey(run: OpenRun, training: Training, order: Order) -> None:
    if order.task == "load":
        return
    if order.task == "logprobs":
        logprobs = training.weights.logprobs(order.update, ordered_rollouts(run.folder))
        if run.ranks.first:
            answer_logprobs(run.folder, logprobs)
        return
    with Work(run, training=training) as work:
        work.optimize(Stage.of(run, order.stage), order.update)
        if not training.stays:
            training.save(temporary=True, rests=True)  # one that is due is saved already
        if hands_over := training.hands_over_model:
            training.hand_over()
    if run.config.backend.clustered:  # it may start ranks again, from a published checkpoint
        run.folder.settle()
    elif run.folder.pending and not hands_over:
        run.folder.pending.ready()  # engines may read the model then


def evaluate(run: OpenRun, update: int, *, again: bool = True) -> dict[str, Any]:
    """Measure the policy after `update` updates on the held-out problems.

    Returns the numbers of a line of metrics.jsonl: "accuracy", the ends of its 95 % interval,
    "reward", "entropy" in nats per token, "time/evaluate" in seconds and others (see
    docs/reference.md). Suites that are due at this update and have no line are measured, too.
    Without `again`, return {} if metrics.jsonl has this evaluation already.
    Raises UsageError if the run has not reached that update or holds out no problem, RunStopped if
    the checkpoint is gone or damaged.
    """
    with Work(run) as work:
        if not again and work.metrics.has(EVALUATION, update):
            return {}
        _prepare(run)
        run.progress.say(f"loading the model {run.config.model.path}")
        result = evaluate_policy(run, work.sampling, update)
        work.metrics.put(EVALUATION, update, **result)
        if work.measures:
            work.measures.measure(update)
    return result


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
        self.training = training or Training(run, weights_of(run))
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
        self._sinks = self._open_sinks(update)
        self.metrics = MetricsLog(path, update, self._tell)  # never replaced: others hold it
        self._signs = Signs()
        for line in read_metrics(path) if path else ():  # they have been said
            self._signs.see(line["kind"], line["update"], line, say=lambda _: None)
        self.measures = None if run.ranks.driven else measures_of(run, self.sampling, self.metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with ExitStack() as stack:  # close all, even if ranks could not save their updates
            stack.callback(self._close_metrics)
            if self.measures:
                stack.callback(self.measures.close)
            stack.callback(self.sampling.close)
            if self.ranks:
                stack.callback(self.ranks.close)
            if isinstance(error, Interrupted):
                self.training.save(temporary=True)

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
        if self.run.ranks.driven:
            return
        if evaluation_due(self.run.config, update):
            evaluate_once(self.run, self.sampling, self.metrics, update)
        if self.measures:
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
                left_to_ranks=self._left_to_ranks,
                until=until,
            )
        else:
            optimize_stage(
                run,
                stage,
                self.training,
                self.metrics,
                compute=self.compute,
                arrived=ShardWait(run, self.sampling, self.compute),
                between=self._between_updates,
                until=until,
            )

    def _between_updates(self, update: int) -> None:
        self.evaluate_if_due(update)
        self.sampling.rest()

    def _trains_elsewhere(self) -> bool:
        """Return whether the updates are made by ranks that this process starts."""
        config = self.run.config
        several = config.distributed.processes > 1 or config.backend.clustered
        return not self.run.ranks.driven and several

    @contextmanager
    def _left_to_ranks(self) -> Iterator[None]:
        """Leave the updates, the memory and the metrics to other processes during the block."""
        assert self.ranks is not None
        self.sampling.leave(room=self.ranks.beside_engines)
        self.training.release()
        self._close_metrics()
        yield
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
        self._signs.see(kind, update, values, self.run.progress.say)
        if self._on_metrics:
            self._on_metrics(kind, update, values)
        if self._signs.collapse and self.run.config.evaluation.stop_on_collapse:
            raise Interrupted(f"{self._signs.collapse}; evaluation.stop_on_collapse stops the run")
