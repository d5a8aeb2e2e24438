"""The half of a stage that makes its rollouts and scores: whatever is missing of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from mugrpo.disk.metrics import MetricsLog
from mugrpo.disk.places import passing
from mugrpo.disk.shards import ShardSet
from mugrpo.engines.base import Decoded
from mugrpo.model.memory import out_of_memory_explained
from mugrpo.rollouts.sampler import Sampler
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.side_by_side import Wanted, sampled_shards
from mugrpo.rollouts.statistics import described, refresh_metrics
from mugrpo.run.opened import OpenRun
from mugrpo.stages.canary import canary, canary_rollouts
from mugrpo.stages.plan import is_made, plan_stage, stage_shards
from mugrpo.stages.sampling import Sampling
from mugrpo.stages.stage import Stage


def mend_past_stage(run: OpenRun, stage: Stage, sampling: Sampling, metrics: MetricsLog) -> None:
    """Make again what `repair` took out of a stage that is trained on already.

    The run's result does not need it. So if no checkpoint holds the policy any more, say it only.
    """
    shards = stage.shards("rollouts")
    whole = all(shard in shards for shard, _ in enumerate(stage_shards(stage)))
    if not whole and stage.first_update not in (0, *stage.folder.checkpoint_updates()):
        run.progress.say(
            f"stage {stage.number} lacks shards, and the policy that made them is not kept; they "
            "are not needed to go on"
        )
        return
    sample_stage(run, stage, sampling, metrics)


def sample_stage(run: OpenRun, stage: Stage, sampling: Sampling, metrics: MetricsLog) -> None:
    """Generate, score and plan: one round, or with dynamic sampling as many as are needed."""
    rounds = None
    while rounds != (rounds := len(stage_shards(stage))):
        generate_stage(run, stage, sampling)
        score_stage(run, stage, metrics)
    plan_stage(stage, run.progress.say)


@dataclass
class Generation:
    """The rollout shards that a stage lacks, and engines that are ready to make them."""

    rollouts: ShardSet
    samplers: Sequence[Sampler]
    missing: Sequence[Wanted]
    there: int  # rollouts that were made before
    wanted: int  # rollouts of the stage, as far as is known now
    notes: dict[str, float | None]  # of the refresh, for the first shard's entry in the manifest
    way_out_of_memory: str

    def shards(self, on_decoded: Callable[[Decoded], None]) -> Iterator[int]:
        """Make and publish what is missing. Yields the number of each shard once it is there."""
        with out_of_memory_explained("generation", self.way_out_of_memory):
            for number, sampled in sampled_shards(self.samplers, self.missing, on_decoded):
                step = self.samplers[0].policy_step
                sampled.publish(self.rollouts, number, **self.notes, policy_step=step)
                self.notes["refresh_seconds"] = None  # once a refresh
                yield number


def begin_generation(run: OpenRun, stage: Stage, sampling: Sampling) -> Generation | None:
    """Refresh the engines to the stage's policy and check them; None if nothing is missing.

    Rollouts that another policy made are taken out of the stage first.
    """
    rollouts = stage.shards("rollouts")
    forget_others(stage, rollouts)
    parts = stage_shards(stage)
    missing = [s for s in range(len(parts)) if not is_made(stage, rollouts, s)]
    for stranger in rollouts.strangers():
        run.progress.say(f"{stranger} is not in its manifest; it is not read")
    if not missing:
        return None
    groups = [[(run.problems[index], k) for index, k in part] for part in parts]
    sampling.start()  # no part of what a refresh takes
    began = time.monotonic()
    samplers = [
        Sampler(
            engine,
            run.prompts,
            seed=run.config.seed,
            stage=str(stage.number),
            group_size=run.config.schedule.group_size,
            temperature=run.config.rollouts.temperature,
            max_new_tokens=run.config.rollouts.max_new_tokens,
            policy_step=stage.first_update,
            expected=sampling.expected_lengths(stage.number),
        )
        for engine in sampling.refresh(stage.first_update)
    ]
    gap = canary(
        canary_rollouts(
            samplers,
            groups[0],  # the same responses, whatever is there already
            run.config.engine,
            lambda _: run.stop.check(),
        ),
        partial(sampling.trainer_logprobs, stage.first_update),
        precision=run.config.model.precision,
        tolerance=run.config.canary_tolerance,
        warning=run.config.engine.canary_warning,
        say=run.progress.say,
    )
    notes = {"canary_gap": gap, "refresh_seconds": time.monotonic() - began}
    if have := len(parts) - len(missing):
        run.progress.say(f"stage {stage.number + 1}: {have}/{len(parts)} shards done, continuing")
    size = run.config.schedule.group_size
    wanted = sum(map(len, parts)) * size
    return Generation(
        rollouts,
        samplers,
        [(number, groups[number]) for number in missing],
        wanted - sum(len(parts[number]) for number in missing) * size,
        wanted,
        notes,
        run.config.engine.way_out_of_memory,
    )


def generate_stage(run: OpenRun, stage: Stage, sampling: Sampling) -> None:
    """Publish the stage's missing rollout shards, in place of those that another policy made."""
    passing("stage")
    generation = begin_generation(run, stage, sampling)
    if generation is None:
        return
    run.progress.begin(stage.heading("generate"), "rollouts", generation.wanted, generation.there)

    def on_decoded(decoded: Decoded) -> None:
        run.stop.check()
        tokens = sum(len(completion.ids) for _, completion in decoded.completions)
        run.progress.advance(len(decoded.completions), tokens)

    for _ in generation.shards(on_decoded):
        pass
    run.progress.end()


def forget_others(stage: Stage, rollouts: ShardSet) -> None:
    """Take rollouts that another policy made, and their scores, out of the stage."""
    scores = stage.shards("scores")
    for shard in rollouts.numbers():
        if not is_made(stage, rollouts, shard):
            rollouts.forget(shard)
            if shard in scores:
                scores.forget(shard)


def unscored(stage: Stage, rollouts: ShardSet, scores: ShardSet) -> list[int]:
    """Return the stage's shards that lack scores of these rollouts by the judge that they need."""
    judge = stage.required_judge()
    shards = range(len(stage_shards(stage)))
    return [shard for shard in shards if not scored(rollouts, scores, shard, judge)]


def score_stage(run: OpenRun, stage: Stage, metrics: MetricsLog, *, again: bool = False) -> None:
    """Publish the stage's missing score shards, or with `again` all of them."""
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    everything = list(range(len(stage_shards(stage))))
    missing = everything if again else unscored(stage, rollouts, scores)
    if missing:
        scorer = run.scorer(run.problems)
        run.progress.begin(stage.heading("score"), "shards", len(missing))
        for shard in missing:
            scorer.make_shard(rollouts, scores, shard)
            run.progress.advance(1)
        run.progress.end()
    refresh = {"stage": stage.number, **refresh_metrics(rollouts, scores)}
    if metrics.put("refresh", stage.first_update, **refresh):
        run.progress.say(described(refresh))
