"""The stage loop. If it is not published, do it.

    for each stage:
        generate   every missing rollout shard, with the policy at the stage's first update
        score      every missing score shard
        logprobs   those of other policies that the objective needs
        optimize   from the newest checkpoint to the end of the stage

Generation and optimization never call each other: they meet at the stage's shards on disk. A phase
is a function of a run (which one), a stage (what of it is published) and a host (who computes), and
does what is not published yet. So a run that was killed anywhere continues from there, and any
phase can run alone, elsewhere or again.
"""

from typing import Any

from mugrpo.disk.metrics import EVALUATION
from mugrpo.disk.records import WHOLE, Part
from mugrpo.hosts import host_of
from mugrpo.hosts.host import Host
from mugrpo.hosts.weights import weights_at
from mugrpo.processes.claims import forget_claims
from mugrpo.run.journal import OnMetrics
from mugrpo.run.opening import OpenRun
from mugrpo.run.preflight import preflight, prepare
from mugrpo.run.stage import Stage
from mugrpo.stages.ahead import Others, generating
from mugrpo.stages.evaluate import evaluate as evaluate_policy
from mugrpo.stages.evaluate import evaluate_if_due
from mugrpo.stages.generate import generate as generate_stage
from mugrpo.stages.optimize import optimize as optimize_stage
from mugrpo.stages.score import log_refresh, score_again
from mugrpo.stages.score import score as score_stage


def train(run: OpenRun, on_metrics: OnMetrics | None = None) -> None:
    """Do everything in the run that is not done yet.

    `on_metrics` is called with the kind, the update and the values of each metrics line, but
    for those that ranks write. Raises RunStopped if the run cannot go on now or was asked to stop,
    and UsageError if its config does not fit the machine, the data or the rewards.
    """
    run.journal.open(on_metrics)
    with host_of(run) as host:
        _begin(run, host)
        schedule = run.config.schedule
        for number in range(schedule.stage_of(run.folder.newest_update()), schedule.stages):
            stage = Stage.of(run, number)
            with generating(run, stage, host) as generation:
                optimize_stage(run, stage, host, generation=generation)
    run.folder.settle()
    assert run.folder.newest_update() == schedule.total_updates
    # raises if the last checkpoint is damaged
    weights_at(run.folder, run.config.model, schedule.total_updates)


def _begin(run: OpenRun, host: Host) -> None:
    """Say what will be done, try what it needs, and make again what past stages have lost."""
    config, update = run.config, run.folder.newest_update()
    run.progress.say(
        f"{config.method}, {config.task.name}, model {config.model.path}: "
        f"{config.schedule.total_updates} updates, {config.optimizer.lr_schedule} learning rate "
        f"from {config.optimizer.lr:g}"
    )
    if update:
        run.progress.say(f"resuming from {run.folder.checkpoint(update)}")
    preflight(run)
    host.load()
    for number in range(config.schedule.stage_of(update)):
        _remake(run, Stage.of(run, number), host)
    # before generation: with overlap, an evaluation would wait for the stage's rollouts
    evaluate_if_due(run, host, update)


def _remake(run: OpenRun, stage: Stage, host: Host) -> None:
    """Make again what `repair` removed from a stage that has been trained on.

    The run's result does not depend on it. So if no checkpoint holds the stage's policy any more,
    only say so.
    """
    if stage.is_there() and run.journal.has("refresh", stage.first_update):
        return
    if stage.lacking() and stage.first_update not in (0, *stage.folder.checkpoint_updates()):
        run.progress.say(
            f"stage {stage.number} lacks shards, and the policy that generated them is gone; the "
            "run continues without them"
        )
        return
    generate_stage(run, stage, host)
    score_stage(run, stage)
    log_refresh(run, stage)


def generate(run: OpenRun, number: int, part: Part = WHOLE) -> None:
    """Publish the missing rollout shards of a part of stage `number` (from 0), without a trainer.

    Parts may be any, overlap, and run at once on several machines: they publish the same shards.
    Raises UsageError if the run has not reached the update that the stage begins from, RunStopped
    if that checkpoint is gone, damaged or another one than other parts had, or if an engine cannot
    go on.
    """
    with host_of(run) as host:
        generate_stage(run, Stage.of(run, number), host, part)


def score(run: OpenRun, number: int, part: Part = WHOLE, *, again: bool = False) -> None:
    """Publish the missing score shards of a part of stage `number` (from 0), or if `again`, all.

    Raises UsageError if rollouts are missing, RunStopped if too many responses get no verdict.
    """
    stage = Stage.of(run, number)
    stage.require("rollouts", part=part)
    prepare(run)
    if again:
        if stage.begun():
            run.progress.say(f"stage {number}: updates made on the old scores stay as they are")
        score_again(run, stage)
    else:
        score_stage(run, stage, part)
    if not run.folder.apart:
        log_refresh(run, stage)


def optimize(run: OpenRun, number: int, *, until: int | None = None, wait: float = 0.0) -> None:
    """Make the missing updates of stage `number` (from 0), and save a checkpoint.

    `until` is the number of updates of the whole run after which to stop, by default those at the
    stage's end. Rollouts and scores that other processes are at work on are waited for, and `wait`
    seconds for processes that are not at work yet. Raises UsageError if nobody is and there is
    nothing to wait for.
    """
    stage, others = Stage.of(run, number), None
    if stage.unscored():
        others = Others(run, stage, wait)
        if others.failed():
            stage.require("rollouts", "scores")
    with host_of(run) as host:
        if run.config.evaluation.every:
            prepare(run)
        optimize_stage(run, stage, host, until=until, generation=others)
        if not stage.unscored():  # what killed parts have claimed is made by others
            for kind in ("rollouts", "scores"):
                forget_claims(run.folder.shards(number, kind))
        host.save()  # the next command needs it
    run.folder.settle()


def evaluate(run: OpenRun, update: int) -> dict[str, Any]:
    """Measure the policy after `update` updates on the held-out problems.

    Returns the numbers of a line of metrics.jsonl: "accuracy", the ends of its 95 % interval,
    "reward", "entropy" in nats per token, "time/evaluate" in seconds and others (see
    docs/reference.md). Suites that are due at this update and have no line are measured, too.
    Raises UsageError if the run has not reached that update or holds out no problem, RunStopped if
    the checkpoint is gone or damaged.
    """
    with host_of(run) as host:
        prepare(run)
        run.progress.say(f"loading the model {run.config.model.path}")
        result = evaluate_policy(run, host, update)
        run.journal.put(EVALUATION, update, **result)
        if run.suites:
            run.suites.measure(host, update)
    return result
