"""A stage whose first batches are trained on while its later ones are generated.

A thread of the run takes what the engines make, which have processes or machines of their own, and
publishes and scores it. Updates read shards as they come, in the same order and of the same policy
as without overlap: the weights are the same to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.metrics import MetricsLog
from mugrpo.rollouts.score import Scorer
from mugrpo.run.opened import OpenRun
from mugrpo.stages.background import Background
from mugrpo.stages.generate import Generation, begin_generation, score_stage, unscored
from mugrpo.stages.logprobs import Compute, logprobs_stage
from mugrpo.stages.plan import plan_stage
from mugrpo.stages.reader import StageReader
from mugrpo.stages.sampling import Sampling
from mugrpo.stages.stage import Stage

_TICK = 0.05  # seconds between looks for a shard


@contextmanager
def generated_beside(
    run: OpenRun, stage: Stage, sampling: Sampling, metrics: MetricsLog
) -> Iterator[None]:
    """Generate and score the stage beside what is done in the block, and to its end.

    What stops one of the two stops both.
    """
    generation = begin_generation(run, stage, sampling)
    plan_stage(stage, run.progress.say)
    if generation and len(generation.missing) == 1:
        run.progress.say(
            "overlap: the stage is one shard, which updates wait for; lower "
            "--rollouts.shard_rollouts in a new run"
        )
    scorer = run.scorer(run.problems)

    def work(keep_on: Callable[[], None]) -> None:
        _generate_and_score(stage, generation, scorer, keep_on)

    background = sampling.background = Background(work, run.stop.check)
    try:
        yield
        background.wait()
    finally:
        background.close()
        sampling.background = None
    score_stage(run, stage, metrics)  # all are: the stage's line of metrics


def _generate_and_score(
    stage: Stage, generation: Generation | None, scorer: Scorer, keep_on: Callable[[], None]
) -> None:
    """Publish what the stage lacks of rollouts and scores, each shard's scores after it."""
    rollouts = generation.rollouts if generation else stage.shards("rollouts")
    scores = stage.shards("scores")
    for shard in unscored(stage, rollouts, scores):
        if shard in rollouts:
            scorer.make_shard(rollouts, scores, shard)
    for shard in generation.shards(lambda _: keep_on()) if generation else ():
        scorer.make_shard(rollouts, scores, shard)


class Arrivals:
    """Waits for the shards that an update reads, if others are still generated meanwhile."""

    def __init__(self, run: OpenRun, sampling: Sampling, compute: Compute) -> None:
        self._run = run
        self._sampling = sampling
        self._compute = compute
        self._ready = set[int]()

    def __call__(self, reader: StageReader, update: int) -> None:
        """Wait until all ranks see the scored shards of update number `update` (from 0).

        Then the logprobs that it needs of other policies are made, and `reader` sees everything.
        Raises what stopped the generation.
        """
        run = self._run
        if not run.config.overlap or (shards := reader.shards_of(update)) <= self._ready:
            return
        while run.ranks.any(not reader.has(shards)):
            run.check()
            over = run.ranks.alone and not self._sampling.busy()
            reader.open()
            if over and not reader.has(shards):
                raise RunStopped(
                    f"stage {reader.stage.number} lacks scored shards among {sorted(shards)}"
                )
            time.sleep(_TICK)
        if run.config.needs and run.ranks.size == 1:
            with run.progress.aside():
                logprobs_stage(reader.stage, self._compute, run.progress)
            reader.open()
        self._ready |= shards
