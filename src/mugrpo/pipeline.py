"""The stage loop. If it is not published, do it.

    for each stage:
        generate   every missing rollout shard, with the policy at the stage's first update
        score      every missing score shard
        plan       which rollouts each update trains on
        logprobs   what the objective wants of other policies
        optimize   from the newest checkpoint to the stage's last update

Generation and optimization never call each other: they meet at the stage's shards on disk. Each
step looks at what is published and does the rest, so a run that was killed anywhere goes on from
there, and any one of them can be run alone, elsewhere or again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from mugrpo.canary import canary
from mugrpo.engines.base import Completion
from mugrpo.errors import UsageError
from mugrpo.evaluate import evaluate_if_due
from mugrpo.optimize.samples import SampleCollector
from mugrpo.optimize.trainer import Experience
from mugrpo.other_policies import StoredLogprobs, logprobs_stage
from mugrpo.rollouts.generate import Sampler
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.statistics import described, refresh_metrics
from mugrpo.run import Run
from mugrpo.saving import (
    checkpoint,
    checkpoint_due,
    keep_samples,
    report_nonfinite,
    samples_due,
    saved_when_interrupted,
)
from mugrpo.shards import (
    RowReader,
    ShardSet,
    read_plan,
    rollout_from_row,
    score_from_row,
    write_plan,
)


def train(run: Run) -> None:
    """Everything of the run that is not done yet."""
    total = run.config.schedule.total_updates
    update = run.newest_update
    if update:
        run.progress.say(f"resuming from {run.dir.checkpoint(update)}")
    current = run.schedule.stage_of(update)
    run.task.prepare()
    with saved_when_interrupted(run):
        for stage in range(current):
            mend_past_stage(run, stage)
        evaluate_if_due(run, update)
        for stage in range(current, run.config.schedule.stages):
            generate_stage(run, stage)
            score_stage(run, stage)
            plan_stage(run, stage)
            logprobs_stage(run, stage)
            optimize_stage(run, stage)
    assert run.newest_update == total


def run_phase(run: Run, phase: str, stage: int, *, again: bool = False) -> None:
    """One phase ("generate", "score", "optimize") of one stage; scores can be made `again`.

    Raises UsageError where the phase before it is not complete.
    """
    if phase != "generate":
        require(run, stage, "rollouts")
    if phase == "optimize":
        require(run, stage, "scores")
    if phase == "score":
        run.task.prepare()
    with saved_when_interrupted(run):
        if phase == "generate":
            generate_stage(run, stage)
        elif phase == "score":
            if again and run.newest_update > run.schedule.first_update(stage):
                run.progress.say(f"stage {stage}: updates made on the old scores stay as they are")
            score_stage(run, stage, again=again)
        else:
            plan_stage(run, stage)
            logprobs_stage(run, stage)
            optimize_stage(run, stage)
            if run.trainer.update > run.newest_update:  # the next command needs it
                checkpoint(run)


def mend_past_stage(run: Run, stage: int) -> None:
    """Make again what `repair` took out of a stage that is trained on already.

    The run's result does not need it, so a policy that no checkpoint holds any more is only told.
    """
    shards = ShardSet(run.dir.rollouts(stage), "rollouts")
    first_update = run.schedule.first_update(stage)
    whole = all(shard in shards for shard in range(shard_count(run, stage)))
    if not whole and first_update not in (0, *run.dir.checkpoint_updates()):
        run.progress.say(
            f"stage {stage} lacks shards, and the policy that made them is not kept; they are not "
            "needed to go on"
        )
        return
    generate_stage(run, stage)
    score_stage(run, stage)
    plan_stage(run, stage)


def require(run: Run, stage: int, kind: str) -> None:
    """Raise UsageError where the stage lacks shards of `kind`."""
    rollouts = ShardSet(run.dir.rollouts(stage), "rollouts")
    scores = ShardSet(run.dir.scores(stage), "scores")
    count = shard_count(run, stage)
    if kind == "rollouts":
        have = sum(shard in rollouts for shard in range(count))
    else:
        judge = judge_of(run, stage)
        have = sum(scored(rollouts, scores, shard, judge) for shard in range(count))
    if have < count:
        before = "generate" if kind == "rollouts" else "score"
        raise UsageError(
            f"stage {stage} has {have} of {count} shards of {kind}; run `mugrpo {before} "
            f"{run.dir.root} --stage {stage}` first"
        )


def generate_stage(run: Run, stage: int) -> None:
    """Publish the stage's missing rollout shards."""
    shards = ShardSet(run.dir.rollouts(stage), "rollouts")
    parts = list(shard_groups(run, stage))
    missing = [shard for shard in range(len(parts)) if shard not in shards]
    for stranger in shards.strangers():
        run.progress.say(f"{stranger} is not in its manifest; it is not read")
    if not missing:
        return
    engine, _ = run.engine, run.trainer  # made here: no part of what a refresh takes
    began = time.monotonic()
    first_update = run.schedule.first_update(stage)
    run.policy_at(first_update)
    sampler = Sampler(
        engine,
        run.encode,
        seed=run.config.seed,
        stage=str(stage),
        group_size=run.config.schedule.group_size,
        temperature=run.config.rollouts.temperature,
        max_new_tokens=run.config.rollouts.max_new_tokens,
        policy_step=first_update,
    )
    gap = canary(run, sampler, parts[0])  # of the same responses, wherever this goes on from
    refresh_seconds: float | None = time.monotonic() - began
    size = run.config.schedule.group_size
    done = sum(len(part) for shard, part in enumerate(parts) if shard in shards) * size
    if done:
        have = len(parts) - len(missing)
        run.progress.say(f"stage {stage + 1}: {have}/{len(parts)} shards done, continuing")
    total = run.config.schedule.rollouts_per_stage
    run.progress.begin(_heading(run, stage, "generate"), "rollouts", total, done)

    def on_batch(batch: list[Completion]) -> None:
        run.stop.check()
        run.progress.advance(len(batch), sum(len(c.ids) for c in batch))

    for shard in missing:
        groups = [(run.problems[index], occurrence) for index, occurrence in parts[shard]]
        notes = {"canary_gap": gap, "refresh_seconds": refresh_seconds}
        sampler.make_shard(shards, shard, groups, on_batch, **notes)
        refresh_seconds = None  # once a refresh
    run.progress.end()


def score_stage(run: Run, stage: int, *, again: bool = False) -> None:
    """Publish the stage's missing score shards, those of other rollouts or, in a stage that is not
    done, of another judge among them; all of them where they are made `again`."""
    rollouts = ShardSet(run.dir.rollouts(stage), "rollouts")
    scores = ShardSet(run.dir.scores(stage), "scores")
    judge = judge_of(run, stage)
    shards = range(shard_count(run, stage))
    missing = [s for s in shards if again or not scored(rollouts, scores, s, judge)]
    if missing:
        scorer = run.scorer(run.problems)
        run.progress.begin(_heading(run, stage, "score"), "shards", len(missing))
        for shard in missing:
            scorer.make_shard(rollouts, scores, shard)
            run.progress.advance(1)
        run.progress.end()
    refresh = {"stage": stage, **refresh_metrics(rollouts, scores)}
    if run.metrics.put("refresh", run.schedule.first_update(stage), **refresh):
        run.progress.say(described(refresh))


def judge_of(run: Run, stage: int) -> str | None:
    """Whose scores count: in a stage that is trained on already, anybody's."""
    trained = run.schedule.first_update(stage + 1) <= run.newest_update
    return None if trained else run.judge


def plan_stage(run: Run, stage: int) -> None:
    """Publish the stage's batch plan: every batch its groups, in the order they were sampled."""
    plan = ShardSet(run.dir.plan(stage), "plan")
    if 0 in plan:
        return
    rollouts, rows = ShardSet(run.dir.rollouts(stage), "rollouts"), []
    for shard, groups in enumerate(shard_groups(run, stage)):
        count = len(groups) * run.config.schedule.group_size
        if rollouts.entry(shard)["rows"] != count:
            raise UsageError(
                f"{rollouts.path(shard)} has {rollouts.entry(shard)['rows']} rollouts, not the "
                f"{count} of the schedule: whole groups, and rollouts.shard_rollouts to a shard"
            )
        rows += [(shard, row) for row in range(count)]
    size = run.config.schedule.rollouts_per_update
    write_plan(plan, [rows[start : start + size] for start in range(0, len(rows), size)])


def optimize_stage(run: Run, stage: int) -> None:
    """Make the stage's updates that no checkpoint holds yet."""
    schedule = run.schedule
    first, end = schedule.first_update(stage), schedule.first_update(stage + 1)
    if run.newest_update >= end:
        run.progress.say(f"stage {stage}: all updates are made")
        return
    start = max(run.newest_update, first)
    evaluate_if_due(run, start)
    trainer = run.trainer_at(start)
    rollout_shards = ShardSet(run.dir.rollouts(stage), "rollouts")
    score_shards = ShardSet(run.dir.scores(stage), "scores")
    reward = refresh_metrics(rollout_shards, score_shards)["behavior_reward"]
    run.progress.behavior_reward = reward
    rollouts, scores = RowReader(rollout_shards), RowReader(score_shards)
    plan = read_plan(ShardSet(run.dir.plan(stage), "plan"))
    stored = StoredLogprobs(run, stage, plan)
    updates = run.config.schedule.updates_per_stage
    run.progress.begin(_heading(run, stage, "optimize"), "updates", updates, start - first)
    for update in range(start, end):
        run.stop.check()
        began = time.monotonic()
        places = plan[schedule.batch_of(update)]
        experience = Experience(
            [rollout_from_row(row) for row in rollouts.rows(places)],
            [score_from_row(row) for row in scores.rows(places)],
            stored.of_update(update),
        )
        read_seconds = time.monotonic() - began
        watch = SampleCollector() if samples_due(run, update + 1) else None
        metrics = trainer.step(experience, watch)
        run.metrics.append(
            "update",
            trainer.update,
            stage=stage,
            staleness=schedule.staleness(update),
            behavior_reward=reward,
            **metrics,
            **{"time/read": read_seconds, "time/checkpoint": run.checkpoint_seconds},
        )
        run.checkpoint_seconds = 0.0  # they stand in the line of the next update
        if watch is not None:
            keep_samples(run, experience, watch)
        if metrics["skipped"]:
            report_nonfinite(run, experience, metrics)
        if checkpoint_due(run, trainer.update):
            checkpoint(run)
        run.progress.advance(1, metrics["tokens"])
        evaluate_if_due(run, trainer.update)
    run.progress.end()


def shard_groups(run: Run, stage: int) -> Iterator[list[tuple[int, int]]]:
    """(problem index, occurrence) of the groups in each of the stage's shards."""
    groups = list(run.schedule.groups(stage))
    size = math.ceil(run.config.rollouts.shard_rollouts / run.config.schedule.group_size)
    for start in range(0, len(groups), size):
        yield groups[start : start + size]


def shard_count(run: Run, stage: int) -> int:
    return sum(1 for _ in shard_groups(run, stage))


def _heading(run: Run, stage: int, phase: str) -> str:
    return f"stage {stage + 1}/{run.config.schedule.stages}  {phase}"
