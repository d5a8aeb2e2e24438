"""The half of a stage that produces its missing rollouts and scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from mugrpo.disk.metrics import MetricsLog
from mugrpo.disk.publishing import passing
from mugrpo.disk.shards import ShardSet
from mugrpo.engines.base import Decoded
from mugrpo.model.memory import out_of_memory_explained
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.side_by_side import sampled_shards
from mugrpo.rollouts.statistics import refresh_metrics, refresh_text
from mugrpo.run.opening import OpenRun
from mugrpo.stages.refresh import Refresh
from mugrpo.stages.sampling import Sampling, samplers_of
from mugrpo.stages.stage import Stage, plan_stage, stage_shards


def remake_past_stage(run: OpenRun, stage: Stage, sampling: Sampling, metrics: MetricsLog) -> None:
    """Regenerate what `repair` removed from a stage that has been trained on.

    The run's result does not depend on it. So if no checkpoint holds the stage's policy any more,
    only say so.
    """
    if missing(stage) and stage.first_update not in (0, *stage.folder.checkpoint_updates()):
        run.progress.say(
            f"stage {stage.number} lacks shards, and the policy that generated them is gone; the "
            "run continues without them"
        )
        return
    prepare_stage(run, stage, sampling, metrics)


def prepare_stage(run: OpenRun, stage: Stage, sampling: Sampling, metrics: MetricsLog) -> None:
    """Generate, score and plan a stage, in as many rounds as dynamic sampling needs."""
    shards = len(stage_shards(stage))
    while True:
        generate_stage(run, stage, sampling)
        score_shards(run, stage)
        before, shards = shards, len(stage_shards(stage))
        if shards == before:
            break
    log_refresh(run, stage, metrics)
    plan_stage(stage, run.progress.say)


def missing(stage: Stage) -> list[int]:
    """Return the stage's rollout shards that are not published."""
    rollouts = stage.shards("rollouts")
    return [shard for shard in range(len(stage_shards(stage))) if shard not in rollouts]


class Generation:
    """The rollout shards that a stage lacks, with engines that are ready to generate them."""

    def __init__(self, run: OpenRun, stage: Stage, sampling: Sampling) -> None:
        """Refresh the engines to the stage's policy. Some shard must be missing."""
        self._run = run
        self.rollouts = stage.shards("rollouts")
        parts, lacking = stage_shards(stage), missing(stage)
        groups = [[(run.problems[index], k) for index, k in part] for part in parts]
        name, size = str(stage.number), run.config.schedule.group_size
        # The canary gets the same responses, whichever shards are missing.
        self.refresh = Refresh(run, sampling, stage.first_update, groups[0], name)
        self._samplers = samplers_of(
            run,
            self.refresh.engines,
            name,
            size,
            stage.first_update,
            dialogues=sampling.dialogues(),
        )
        self._missing = [(number, groups[number]) for number in lacking]
        self._pieces = pieces_of(stage.groups, len(parts[0]), len(self._samplers))
        self.total = sum(map(len, parts)) * size  # rollouts of the stage, as known so far
        self.published = self.total - sum(len(parts[number]) for number in lacking) * size

    def shards(self, on_decoded: Callable[[Decoded], None]) -> Iterator[int]:
        """Generate the missing shards. Yields the number of each one after publishing it.

        Raises RunStopped if the canary rejects the engines.
        """
        first, notes = True, dict[str, Any]()
        config = self._run.config

        def decoded(some: Decoded) -> None:
            self.refresh.check()
            on_decoded(some)

        try:
            with out_of_memory_explained("generation", config.engine.memory_remedy):
                for number, sampled in sampled_shards(
                    self._samplers, self._missing, decoded, pieces=self._pieces
                ):
                    if first:
                        notes, first = self.refresh.notes(), False
                    else:  # the first entry alone has the seconds of the refresh
                        notes = {"canary_gap": notes["canary_gap"]}
                    # No shard may be older than its policy. An engine in this process has it from
                    # memory; others have read it from a folder that is published.
                    if config.engine_in_process:
                        self._run.folder.settle()
                    step = self._samplers[0].policy_step
                    sampled.publish(self.rollouts, number, **notes, policy_step=step)
                    yield number
        finally:
            self.refresh.close()


def pieces_of(stage_groups: int, shard_groups: int, engines: int) -> int:
    """Return the number of pieces that each shard is cut into, so that every engine has work.

    It does not depend on the shards that are missing, so a run that was killed cuts its shards in
    the same way.
    """
    return math.ceil(engines / math.ceil(stage_groups / shard_groups))


def generate_stage(run: OpenRun, stage: Stage, sampling: Sampling) -> None:
    """Publish the stage's missing rollout shards.

    Raises RunStopped if the canary rejects the engines.
    """
    passing("stage")
    if missing(stage):
        generation = Generation(run, stage, sampling)
        heading = stage.heading("generate")
        run.progress.begin(heading, "rollouts", generation.total, generation.published)
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
    shards = rollouts.numbers() if again else unscored(stage, rollouts, scores)
    if shards:
        scorer = run.scorer(run.problems, stage.number)
        run.progress.begin(stage.heading("score"), "shards", len(shards))
        for shard in shards:
            scorer.make_shard(rollouts, scores, shard)
            run.progress.advance(1)
        run.progress.end()


def log_refresh(run: OpenRun, stage: Stage, metrics: MetricsLog) -> None:
    """Write the metrics line of the stage's refresh, unless it is there already."""
    measured = refresh_metrics(stage.shards("rollouts"), stage.shards("scores"))
    refresh = {"stage": stage.number, **measured}
    if metrics.put("refresh", stage.first_update, **refresh):
        run.progress.say(refresh_text(refresh, run.config.rollouts.max_new_tokens))
