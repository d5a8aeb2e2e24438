"""The half of a stage that produces its missing rollouts and scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mugrpo.disk.metrics import MetricsLog
from mugrpo.disk.publishing import passing
from mugrpo.disk.shards import ShardSet
from mugrpo.engines.base import Decoded
from mugrpo.model.hardware import out_of_memory_explained
from mugrpo.rollouts.sampler import Sampler
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.side_by_side import Wanted, sampled_shards
from mugrpo.rollouts.statistics import described, refresh_metrics
from mugrpo.run.opening import OpenRun
from mugrpo.stages.refresh import Refresh, with_other_engines
from mugrpo.stages.sampling import Sampling
from mugrpo.stages.stage import Stage, is_made, plan_stage, stage_shards


def mend_past_stage(run: OpenRun, stage: Stage, sampling: Sampling, metrics: MetricsLog) -> None:
    """Regenerate what `repair` removed from a stage that has been trained on.

    The run's result does not depend on it. So if no checkpoint holds the stage's policy any more,
    only say so.
    """
    shards = stage.shards("rollouts")
    complete = all(shard in shards for shard, _ in enumerate(stage_shards(stage)))
    if not complete and stage.first_update not in (0, *stage.folder.checkpoint_updates()):
        run.progress.say(
            f"stage {stage.number} lacks shards, and the policy that generated them is gone; the "
            "run continues without them"
        )
        return
    sample_stage(run, stage, sampling, metrics)


def sample_stage(run: OpenRun, stage: Stage, sampling: Sampling, metrics: MetricsLog) -> None:
    """Generate, score and plan a stage, in as many rounds as dynamic sampling needs."""
    rounds = None
    while rounds != (rounds := len(stage_shards(stage))):
        generate_stage(run, stage, sampling)
        score_shards(run, stage)
    log_refresh(run, stage, metrics)
    plan_stage(stage, run.progress.say)


@dataclass
class Generation:
    """The rollout shards that a stage lacks, with engines that are ready to generate them."""

    rollouts: ShardSet
    samplers: Sequence[Sampler]
    missing: Sequence[Wanted]
    pieces: int  # of each shard, so that every engine has work
    published: int  # rollouts that the stage has already
    total: int  # rollouts of the stage, as known so far
    refresh: Refresh
    settle: Callable[[], None]  # waits until their policy is published
    memory_remedy: str

    def shards(self, on_decoded: Callable[[Decoded], None]) -> Iterator[int]:
        """Generate the missing shards. Yields the number of each one after publishing it.

        Raises Mismatch if the canary rejects the engines.
        """
        notes: dict[str, Any] = {}

        def decoded(some: Decoded) -> None:
            self.refresh.check()
            on_decoded(some)

        try:
            with out_of_memory_explained("generation", self.memory_remedy):
                for number, sampled in sampled_shards(
                    self.samplers, self.missing, decoded, pieces=self.pieces
                ):
                    # The first entry has the seconds of the refresh.
                    notes = {"canary_gap": notes["canary_gap"]} if notes else self.refresh.notes()
                    self.settle()  # no shard may be older than its policy
                    step = self.samplers[0].policy_step
                    sampled.publish(self.rollouts, number, **notes, policy_step=step)
                    yield number
        finally:
            self.refresh.close()


def begin_generation(run: OpenRun, stage: Stage, sampling: Sampling) -> Generation | None:
    """Refresh the engines to the stage's policy.

    Rollouts of another policy are removed from the stage first. Returns None if no shard is
    missing.
    """
    rollouts = stage.shards("rollouts")
    forget_others(stage, rollouts)
    parts = stage_shards(stage)
    missing = [s for s in range(len(parts)) if not is_made(stage, rollouts, s)]
    for stranger in rollouts.strangers():
        run.progress.say(f"{stranger} is not in its manifest, so it is ignored")
    if not missing:
        return None
    groups = [[(run.problems[index], k) for index, k in part] for part in parts]
    # The canary gets the same responses, whichever shards are missing.
    expected = sampling.expected_lengths(stage.number)
    refresh = Refresh(run, sampling, stage.first_update, groups[0], str(stage.number))
    samplers = [
        Sampler(
            engine,
            run.prompts,
            dialogue=dialogue,
            seed=run.config.seed,
            stage=str(stage.number),
            group_size=run.config.schedule.group_size,
            temperature=run.config.rollouts.temperature,
            max_new_tokens=run.config.rollouts.max_new_tokens,
            policy_step=stage.first_update,
            expected=expected,
        )
        for engine, dialogue in zip(refresh.engines, sampling.dialogues(), strict=True)
    ]
    if finished := len(parts) - len(missing):
        run.progress.say(f"stage {stage.number}: {finished}/{len(parts)} shards done, continuing")
    size = run.config.schedule.group_size
    total = sum(map(len, parts)) * size
    return Generation(
        rollouts,
        samplers,
        [(number, groups[number]) for number in missing],
        pieces_of(stage.groups, len(parts[0]), len(samplers)),
        total - sum(len(parts[number]) for number in missing) * size,
        total,
        refresh,
        _policy_published(run),
        run.config.engine.memory_remedy,
    )


def _policy_published(run: OpenRun) -> Callable[[], None]:
    """Return what waits until the newest policy is published.

    That is at once where engines have read it from a folder of its own (`Weights.handed_over`). An
    engine in this process has it from memory, so it waits for the checkpoint.
    """
    return run.folder.settle if run.config.engine_in_process else lambda: None


def pieces_of(stage_groups: int, shard_groups: int, engines: int) -> int:
    """Return the number of pieces that each shard is cut into, so that every engine has work.

    It does not depend on the shards that are missing, so a run that was killed cuts its shards in
    the same way.
    """
    return math.ceil(engines / math.ceil(stage_groups / shard_groups))


def generate_stage(run: OpenRun, stage: Stage, sampling: Sampling) -> None:
    """Publish the stage's missing rollout shards, and replace those of another policy.

    Raises RunStopped if the canary rejects the engines.
    """
    passing("stage")
    with_other_engines(run, sampling, lambda: _generate(run, stage, sampling))


def _generate(run: OpenRun, stage: Stage, sampling: Sampling) -> None:
    generation = begin_generation(run, stage, sampling)
    if generation is None:
        return
    run.progress.begin(
        stage.heading("generate"), "rollouts", generation.total, generation.published
    )
    for _ in generation.shards(counted(run)):
        pass
    run.progress.end()


def counted(run: OpenRun) -> Callable[[Decoded], None]:
    """Return a function that counts decoded responses as progress, and stops if asked to."""

    def count(decoded: Decoded) -> None:
        run.stop.check()
        tokens = sum(len(completion.ids) for _, completion in decoded.completions)
        run.progress.advance(len(decoded.completions), tokens)

    return count


def forget_others(stage: Stage, rollouts: ShardSet) -> None:
    """Remove rollouts of another policy, and their scores, from the stage."""
    scores = stage.shards("scores")
    for shard in rollouts.numbers():
        if not is_made(stage, rollouts, shard):
            rollouts.forget(shard)
            if shard in scores:
                scores.forget(shard)


def unscored(stage: Stage, rollouts: ShardSet, scores: ShardSet) -> list[int]:
    """Return the shards that lack the required judge's scores for their current rollouts."""
    judge = stage.required_judge()
    shards = range(len(stage_shards(stage)))
    return [shard for shard in shards if not scored(rollouts, scores, shard, judge)]


def score_stage(run: OpenRun, stage: Stage, metrics: MetricsLog, *, again: bool = False) -> None:
    """Publish the stage's missing score shards, or all of them if `again`. Log its refresh."""
    score_shards(run, stage, again=again)
    log_refresh(run, stage, metrics)


def score_shards(run: OpenRun, stage: Stage, *, again: bool = False) -> None:
    """Publish the stage's missing score shards, or all of them if `again`."""
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    all_shards = list(range(len(stage_shards(stage))))
    missing = all_shards if again else unscored(stage, rollouts, scores)
    if missing:
        scorer = run.scorer(run.problems, stage.number)
        run.progress.begin(stage.heading("score"), "shards", len(missing))
        for shard in missing:
            scorer.make_shard(rollouts, scores, shard)
            run.progress.advance(1)
        run.progress.end()


def log_refresh(run: OpenRun, stage: Stage, metrics: MetricsLog) -> None:
    """Write the metrics line of the stage's refresh, unless it is there already."""
    measured = refresh_metrics(stage.shards("rollouts"), stage.shards("scores"))
    refresh = {"stage": stage.number, **measured}
    if metrics.put("refresh", stage.first_update, **refresh):
        run.progress.say(described(refresh, run.config.rollouts.max_new_tokens))
