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
from mugrpo.stages.generate import Generation, score_stage
from mugrpo.stages.logprobs import Compute, StageReader, logprobs_stage
from mugrpo.stages.sampling import Background, Sampling
from mugrpo.stages.stage import Stage

_TICK = 0.05  # seconds between checks for a shard


@contextmanager
def generated_beside(
    run: OpenRun, stage: Stage, sampling: Sampling, metrics: MetricsLog
) -> Iterator[None]:
    """Generate and score the whole stage in the background of the block.

    At the end of the block, wait for the rest. An error on either side stops both.
    """
    generation = Generation(run, stage, sampling) if stage.lacking() else None
    if generation:
        generation.refresh.notes()  # the canary needs the trainer, and so do the updates
    if generation and len(stage.drawn) == 1:
        run.progress.say(
            "overlap has no effect: the stage is one shard, which all updates wait for; lower "
            "--rollouts.shard_rollouts in a new run"
        )
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    scorer = run.scorer(run.problems, stage.number)

    def work(check: Callable[[], None]) -> None:
        for shard in stage.unscored():
            if shard in rollouts:
                scorer.make_shard(rollouts, scores, shard)
        for shard in generation.shards(lambda _: check()) if generation else ():
            scorer.make_shard(rollouts, scores, shard)

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

    def __call__(self, reader: StageReader, update: int) -> None:
        """Wait until all ranks see the scored shards of update number `update` (from 0).

        Then compute the logprobs of other policies that the update needs.
        Raises the error that ended generation, or RunStopped if it ended without these shards.
        """
        run, stage = self._run, reader.stage
        if not run.config.overlap:
            return
        while run.ranks.any(not reader.ready(update)):
            run.check()
            ended = not run.ranks.driven and not self._sampling.busy()
            if run.ranks.driven:
                stage.look()
            if ended and not reader.ready(update):
                raise RunStopped(f"stage {stage.number} lacks scores that update {update} reads")
            time.sleep(_TICK)
        if run.config.needs and run.ranks.size == 1:
            with run.progress.aside():
                logprobs_stage(stage, self._compute, run.progress)
