"""The half of a stage that makes its rollouts and scores: what is missing of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mugrpo.disk.shards import ShardSet
from mugrpo.engines.base import Decoded
from mugrpo.model.memory import out_of_memory_explained
from mugrpo.rollouts.sampler import Sampler
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.side_by_side import Shard, made_shards
from mugrpo.rollouts.statistics import described, refresh_metrics
from mugrpo.run.run import Run
from mugrpo.stages.canary import canary
from mugrpo.stages.plan import is_made, plan_stage, stage_shards


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


@dataclass
class Generation:
    """The rollout shards that a stage lacks, and engines that are ready to make them."""

    rollouts: ShardSet
    samplers: Sequence[Sampler]
    missing: Sequence[Shard]
    there: int  # rollouts that were made before
    wanted: int  # rollouts of the stage, as far as is known now
    notes: dict[str, float | None]  # of the refresh, for the first shard's entry in the manifest
    way_out_of_memory: str

    @classmethod
    def begin(cls, run: Run, stage: int) -> Generation | None:
        """Refresh the engines to the stage's policy and check them; None where nothing is missing.

        Rollouts that another policy made are taken out of the stage first.
        """
        rollouts = ShardSet(run.dir.rollouts(stage), "rollouts")
        forget_others(run, stage, rollouts)
        parts = stage_shards(run, stage)
        missing = [s for s in range(len(parts)) if not is_made(run, stage, rollouts, s)]
        for stranger in rollouts.strangers():
            run.progress.say(f"{stranger} is not in its manifest; it is not read")
        if not missing:
            return None
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
        gap = canary(run, samplers, parts[0])  # the same responses, wherever this goes on from
        notes = {"canary_gap": gap, "refresh_seconds": time.monotonic() - began}
        if have := len(parts) - len(missing):
            run.progress.say(f"stage {stage + 1}: {have}/{len(parts)} shards done, continuing")
        size = run.config.schedule.group_size
        return cls(
            rollouts,
            samplers,
            [(s, [(run.problems[index], k) for index, k in parts[s]]) for s in missing],
            sum(len(parts[s]) for s in range(len(parts)) if s not in missing) * size,
            sum(map(len, parts)) * size,
            notes,
            run.config.engine.way_out_of_memory,
        )

    def made(self, on_decoded: Callable[[Decoded], None]) -> Iterator[int]:
        """Make and publish what is missing; gives the number of each shard once it is there."""
        with out_of_memory_explained("generation", self.way_out_of_memory):
            for shard, made in made_shards(self.samplers, self.missing, on_decoded):
                step = self.samplers[0].policy_step
                made.publish(self.rollouts, shard, **self.notes, policy_step=step)
                self.notes["refresh_seconds"] = None  # once a refresh
                yield shard


def generate_stage(run: Run, stage: int) -> None:
    """Publish the stage's missing rollout shards, in place of those that another policy made."""
    generation = Generation.begin(run, stage)
    if generation is None:
        return
    run.progress.begin(
        heading(run, stage, "generate"), "rollouts", generation.wanted, generation.there
    )

    def on_decoded(decoded: Decoded) -> None:
        run.stop.check()
        tokens = sum(len(completion.ids) for _, completion in decoded.completions)
        run.progress.advance(len(decoded.completions), tokens)

    for _ in generation.made(on_decoded):
        pass
    run.progress.end()


def forget_others(run: Run, stage: int, rollouts: ShardSet) -> None:
    """Take rollouts that another policy made, and their scores, out of the stage."""
    scores = ShardSet(run.dir.scores(stage), "scores")
    for shard in rollouts.numbers():
        if not is_made(run, stage, rollouts, shard):
            rollouts.forget(shard)
            if shard in scores:
                scores.forget(shard)


def unscored(run: Run, stage: int, rollouts: ShardSet, scores: ShardSet) -> list[int]:
    """The stage's shards that lack scores of these rollouts or, in a stage that is not done, by
    this judge."""
    judge = run.judge_of(stage)
    shards = range(len(stage_shards(run, stage)))
    return [shard for shard in shards if not scored(rollouts, scores, shard, judge)]


def score_stage(run: Run, stage: int, *, again: bool = False) -> None:
    """Publish the stage's missing score shards; all of them where they are made `again`."""
    rollouts = ShardSet(run.dir.rollouts(stage), "rollouts")
    scores = ShardSet(run.dir.scores(stage), "scores")
    everything = list(range(len(stage_shards(run, stage))))
    missing = everything if again else unscored(run, stage, rollouts, scores)
    if missing:
        scorer = run.scorer(run.problems)
        run.progress.begin(heading(run, stage, "score"), "shards", len(missing))
        for shard in missing:
            scorer.make_shard(rollouts, scores, shard)
            run.progress.advance(1)
        run.progress.end()
    refresh = {"stage": stage, **refresh_metrics(rollouts, scores)}
    if run.metrics.put("refresh", run.schedule.first_update(stage), **refresh):
        run.progress.say(described(refresh))


def heading(run: Run, stage: int, phase: str) -> str:
    """What the progress line calls a phase of a stage."""
    return f"stage {stage + 1}/{run.schedule.stages}  {phase}"
