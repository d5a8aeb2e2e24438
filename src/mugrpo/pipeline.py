"""The stage loop. If it is not published, do it.

    for each stage:
        generate   every missing rollout shard, with the policy at the stage's first update
        score      every missing score shard; dynamic sampling may then want further shards
        plan       which rollouts each update trains on
        logprobs   what the objective wants of other policies
        optimize   from the newest checkpoint to the stage's last update, which `stage_until` may
                   make an earlier one

Generation and optimization never call each other: they meet at the stage's shards on disk. Each
step looks at what is published and does the rest, so a run that was killed anywhere goes on from
there, and any one of them can be run alone, elsewhere or again.
"""

from __future__ import annotations

import math
import time
from itertools import count
from typing import Any

from mugrpo.canary import canary
from mugrpo.engines.base import Decoded
from mugrpo.evaluate import evaluate_if_due
from mugrpo.experience import StageReader
from mugrpo.launch import optimize_in_ranks
from mugrpo.memory import out_of_memory_explained
from mugrpo.optimize.samples import SampleCollector
from mugrpo.other_policies import logprobs_stage, require_logprobs
from mugrpo.planning import is_made, plan_stage, require, stage_shards
from mugrpo.rollouts.generate import Sampler
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.side_by_side import made_shards
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
from mugrpo.shards import ShardSet


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
        for stage in count(current):
            if run.schedule.first_update(stage) == total:
                break
            sample_stage(run, stage)
            logprobs_stage(run, stage)
            optimize_stage(run, stage)
    assert run.newest_update == total


def run_phase(
    run: Run, phase: str, stage: int, *, again: bool = False, until: int | None = None
) -> None:
    """One phase ("generate", "score", "optimize") of one stage: scores `again`, updates `until`.

    Raises UsageError where the phase before it is not complete.
    """
    if phase != "generate":
        require(run, stage, "rollouts")
    if phase == "optimize":
        require(run, stage, "scores")
    alone = run.ranks.size == 1
    if alone and (phase == "score" or (phase == "optimize" and run.config.evaluation.every)):
        run.task.prepare()
    with saved_when_interrupted(run):
        if phase == "generate":
            generate_stage(run, stage)
        elif phase == "score":
            if again and run.newest_update > run.schedule.first_update(stage):
                run.progress.say(f"stage {stage}: updates made on the old scores stay as they are")
            score_stage(run, stage, again=again)
        else:
            if run.ranks.first:
                plan_stage(run, stage)
            if alone:
                logprobs_stage(run, stage)
            else:
                run.ranks.wait()  # for the plan
                require_logprobs(run, stage)
            optimize_stage(run, stage, until)
            if run.trained and run.trainer.update > run.newest_update:  # the next command needs it
                checkpoint(run)


def mend_past_stage(run: Run, stage: int) -> None:
    """Make again what `repair` took out of a stage that is trained on already.

    The run's result does not need it, so a policy that no checkpoint holds any more is only told.
    """
    shards = ShardSet(run.dir.rollouts(stage), "rollouts")
    first_update = run.schedule.first_update(stage)
    whole = all(shard in shards for shard, _ in enumerate(stage_shards(run, stage)))
    if not whole and first_update not in (0, *run.dir.checkpoint_updates()):
        run.progress.say(
            f"stage {stage} lacks shards, and the policy that made them is not kept; they are not "
            "needed to go on"
        )
        return
    sample_stage(run, stage)


def sample_stage(run: Run, stage: int) -> None:
    """Generate, score and plan: one round, or with dynamic sampling as many as are needed."""
    rounds = None
    while rounds != (rounds := len(stage_shards(run, stage))):
        generate_stage(run, stage)
        score_stage(run, stage)
    plan_stage(run, stage)


def generate_stage(run: Run, stage: int) -> None:
    """Publish the stage's missing rollout shards, in place of those that another policy made."""
    shards = ShardSet(run.dir.rollouts(stage), "rollouts")
    forget_others(run, stage, shards)
    parts = stage_shards(run, stage)
    made = [is_made(run, stage, shards, shard) for shard in range(len(parts))]
    missing = [shard for shard, there in enumerate(made) if not there]
    for stranger in shards.strangers():
        run.progress.say(f"{stranger} is not in its manifest; it is not read")
    if not missing:
        return
    _ = run.engines, run.trainer  # made here: no part of what a refresh takes
    began = time.monotonic()
    first_update = run.schedule.first_update(stage)
    samplers = [
        Sampler(
            engine,
            run.encode,
            seed=run.config.seed,
            stage=str(stage),
            group_size=run.config.schedule.group_size,
            temperature=run.config.rollouts.temperature,
            max_new_tokens=run.config.rollouts.max_new_tokens,
            policy_step=first_update,
            expected=run.expected_lengths(stage),
        )
        for engine in run.engines_at(first_update)
    ]
    gap = canary(run, samplers, parts[0])  # of the same responses, wherever this goes on from
    refresh_seconds: float | None = time.monotonic() - began
    size = run.config.schedule.group_size
    done = sum(len(part) for part, there in zip(parts, made, strict=True) if there) * size
    if done:
        have = len(parts) - len(missing)
        run.progress.say(f"stage {stage + 1}: {have}/{len(parts)} shards done, continuing")
    total = sum(map(len, parts)) * size
    run.progress.begin(_heading(run, stage, "generate"), "rollouts", total, done)

    def on_decoded(decoded: Decoded) -> None:
        run.stop.check()
        tokens = sum(len(completion.ids) for _, completion in decoded.completions)
        run.progress.advance(len(decoded.completions), tokens)

    wanted = [
        (shard, [(run.problems[index], occurrence) for index, occurrence in parts[shard]])
        for shard in missing
    ]
    with out_of_memory_explained("generation", run.config.engine.way_out_of_memory):
        for shard, rollouts in made_shards(samplers, wanted, on_decoded):
            refreshed = {"canary_gap": gap, "refresh_seconds": refresh_seconds}
            rollouts.publish(shards, shard, **refreshed, policy_step=first_update)
            refresh_seconds = None  # once a refresh
    run.progress.end()


def forget_others(run: Run, stage: int, rollouts: ShardSet) -> None:
    """Take rollouts that another policy made, and their scores, out of the stage."""
    scores = ShardSet(run.dir.scores(stage), "scores")
    for shard in rollouts.numbers():
        if not is_made(run, stage, rollouts, shard):
            rollouts.forget(shard)
            if shard in scores:
                scores.forget(shard)


def score_stage(run: Run, stage: int, *, again: bool = False) -> None:
    """Publish the stage's missing score shards, those of other rollouts or, in a stage that is not
    done, of another judge among them; all of them where they are made `again`."""
    rollouts = ShardSet(run.dir.rollouts(stage), "rollouts")
    scores = ShardSet(run.dir.scores(stage), "scores")
    judge = run.judge_of(stage)
    shards = range(len(stage_shards(run, stage)))
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


def optimize_stage(run: Run, stage: int, until: int | None = None) -> None:
    """Make the stage's updates that no checkpoint holds yet, up to where it ends, or `until`."""
    first = run.schedule.first_update(stage)
    if run.newest_update >= run.schedule.first_update(stage + 1):
        run.progress.say(f"stage {stage}: all updates are made")
        return
    if run.config.distributed.processes > 1 and run.ranks.size == 1:
        optimize_in_ranks(run, stage, until)
        return
    start = max(run.newest_update, first)
    evaluate_if_due(run, start)
    trainer = run.trainer_at(start)
    reader = StageReader(run, stage)
    run.progress.behavior_reward = reader.behavior_reward
    planned = run.schedule.planned_updates(stage)
    run.progress.begin(_heading(run, stage, "optimize"), "updates", planned, start - first)
    last = math.inf if until is None else until
    while trainer.update < min(run.schedule.first_update(stage + 1), last):
        run.check()
        run.rest_engines()
        began = time.monotonic()
        experience = reader.of_update(trainer.update)
        read_seconds = time.monotonic() - began
        told = {"stage": stage, "staleness": trainer.update - first}
        told["behavior_reward"] = reader.behavior_reward
        watch = SampleCollector() if samples_due(run, trainer.update + 1) else None
        metrics = trainer.step(experience, watch)
        metrics |= {"time/read": read_seconds, "time/checkpoint": run.checkpoint_seconds}
        run.checkpoint_seconds = 0.0  # they stand in the line of the next update
        if run.ranks.first:
            run.metrics.append("update", trainer.update, **told, **metrics)
            if watch is not None:
                keep_samples(run, experience, watch)
        if metrics["skipped"]:
            report_nonfinite(run, experience, metrics)
        end_if_stale(run, stage, metrics)
        if checkpoint_due(run, trainer.update):
            checkpoint(run)
        run.progress.advance(1, metrics["tokens"])
        evaluate_if_due(run, trainer.update)
    run.progress.end()


def end_if_stale(run: Run, stage: int, metrics: dict[str, Any]) -> None:
    """End the stage after this update where its `stage_until`, or the run, ends.

    What is left of its rollouts is not trained on: a "stage_end" line tells how many.
    """
    rule, update = run.config.stage_until, run.trainer.update
    moved = metrics.get(rule.name)
    before, planned = run.schedule, run.schedule.planned_updates(stage)
    made = update - before.first_update(stage)
    if made == planned:
        run.schedule = before.ending_at(update)
        return
    if moved is None or not moved > getattr(rule, "limit", math.inf):
        return
    run.schedule = before.ending_at(update)
    batches = math.ceil(made / before.options.passes_per_batch)
    rollouts = before.batches(stage) * before.options.rollouts_per_update
    unused = rollouts - batches * before.options.rollouts_per_update
    ends = {"stage": stage, "updates": made, "planned_updates": planned, "unused_rollouts": unused}
    if run.ranks.first:
        run.metrics.append("stage_end", update, **ends, **{rule.name: moved})
    run.progress.say(
        f"stage {stage} ends after {made} of {planned} updates: {rule.name} {moved:.3g}; {unused} "
        f"of its {rollouts} rollouts are not trained on"
    )


def _heading(run: Run, stage: int, phase: str) -> str:
    return f"stage {stage + 1}/{run.schedule.stages}  {phase}"
