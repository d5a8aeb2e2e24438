"""Training on a stage's first batches while its later ones are generated.

The engines have processes or machines of their own. A thread of the run publishes and scores what
they generate. Updates read shards as they arrive, in the same order and from the same policy as
without overlap, so the weights are bit-identical.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.metrics import MetricsLog
from mugrpo.run.opening import OpenRun
from mugrpo.stages.generate import Generation, missing, score_stage, unscored
from mugrpo.stages.logprobs import Compute, StageReader, logprobs_stage
from mugrpo.stages.sampling import Background, Sampling
from mugrpo.stages.stage import Stage, plan_stage, stage_shards

_TICK = 0.05  # seconds between checks for a shard


@contextmanager
def generated_beside(
    run: OpenRun, stage: Stage, sampling: Sampling, metrics: MetricsLog
) -> Iterator[None]:
    """Generate and score the whole stage in the background of the block.

    At the end of the block, wait for the rest. An error on either side stops both.
    """
    generation = Generation(run, stage, sampling) if missing(stage) else None
    if generation:
        generation.refresh.notes()  # the canary needs the trainer, and so do the updates
    plan_stage(stage, run.progress.say)
    if generation and len(stage_shards(stage)) == 1:
        run.progress.say(
            "overlap has no effect: the stage is one shard, which all updates wait for; lower "
            "--rollouts.shard_rollouts in a new run"
        )
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    # Another ShardSet of the same folder: only the one that publishes knows the new shards.
    generated = generation.rollouts if generation else rollouts
    scorer = run.scorer(run.problems, stage.number)

    def work(check: Callable[[], None]) -> None:
        for shard in unscored(stage, rollouts, scores):
            if shard in rollouts:
                scorer.make_shard(rollouts, scores, shard)
        for shard in generation.shards(lambda _: check()) if generation else ():
            scorer.make_shard(generated, scores, shard)

    background = sampling.background = Background(work, run.stop.check)
    try:
        yield
        background.wait()
    finally:
        background.close()
        sampling.background = None
    score_stage(run, stage, metrics)  # all are scored: this logs the stage's refresh


class ShardWait:
    """The wait for the shards that an update reads, while others are still being generated."""

    def __init__(self, run: OpenRun, sampling: Sampling, compute: Compute) -> None:
        self._run = run
        self._sampling = sampling
        self._compute = compute
        self._ready = set[int]()

    def __call__(self, reader: StageReader, update: int) -> None:
        """Wait until all ranks see the scored shards of update number `update` (from 0).

        Then compute the logprobs of other policies that the update needs, and reopen `reader`.
        Raises the error that ended generation, or RunStopped if it ended without these shards.
        """
        run = self._run
        if not run.config.overlap or (shards := reader.shards_of(update)) <= self._ready:
            return
        while run.ranks.any(not reader.has(shards)):
            run.check()
            ended = not run.ranks.driven and not self._sampling.busy()
            reader.open()
            if ended and not reader.has(shards):
                raise RunStopped(
                    f"stage {reader.stage.number} lacks scored shards among {sorted(shards)}"
                )
            time.sleep(_TICK)
        if run.config.needs and run.ranks.size == 1:
            with run.progress.aside():
                logprobs_stage(reader.stage, self._compute, run.progress)
            reader.open()
        self._ready |= shards
