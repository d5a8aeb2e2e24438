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

from itertools import count

from mugrpo.processes.ranks import driven
from mugrpo.run.run import Run
from mugrpo.stages.evaluate import evaluate_if_due
from mugrpo.stages.generate import generate_stage, mend_past_stage, sample_stage, score_stage
from mugrpo.stages.logprobs import logprobs_stage, require_logprobs
from mugrpo.stages.optimize import optimize_stage
from mugrpo.stages.overlap import generated_beside
from mugrpo.stages.plan import plan_stage, require
from mugrpo.stages.save import checkpoint, saved_when_interrupted


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
            if run.config.overlap:
                with generated_beside(run, stage):
                    optimize_stage(run, stage)
            else:
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
    come_beside = run.config.overlap and driven()
    if phase != "generate" and not come_beside:
        require(run, stage, "rollouts")
    if phase == "optimize" and not come_beside:
        require(run, stage, "scores")
    if run.alone and (phase == "score" or (phase == "optimize" and run.config.evaluation.every)):
        run.task.prepare()
    with saved_when_interrupted(run):
        if phase == "generate":
            generate_stage(run, stage)
        elif phase == "score":
            if again and run.newest_update > run.schedule.first_update(stage):
                run.progress.say(f"stage {stage}: updates made on the old scores stay as they are")
            score_stage(run, stage, again=again)
        else:
            _optimize(run, stage, until, come_beside=come_beside)


def _optimize(run: Run, stage: int, until: int | None, *, come_beside: bool) -> None:
    """The stage's updates alone, `come_beside` those of a run that generates meanwhile."""
    if run.ranks.first:
        plan_stage(run, stage)
    if run.alone:
        logprobs_stage(run, stage)
    else:
        run.ranks.wait()  # for the plan
        if not come_beside:
            require_logprobs(run, stage)
    optimize_stage(run, stage, until)
    if run.trained and run.trainer.update > run.newest_update:  # the next command needs it
        checkpoint(run)
