"""A stage whose first batches are trained on while its later ones are generated.

A thread of the run takes what the engines make, which have processes or machines of their own, and
publishes and scores it. Updates read shards as they come (`experience`), in the same order and of
the same policy as without overlap: the weights are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from threading import Event

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.shards import ShardSet
from mugrpo.engines.base import Decoded
from mugrpo.run.run import Run
from mugrpo.stages.generate import Generation, score_stage, unscored
from mugrpo.stages.plan import plan_stage


@contextmanager
def generated_beside(run: Run, stage: int) -> Iterator[None]:
    """Generate and score the stage beside what is done in the block, and to its end.

    What stops one of the two stops both.
    """
    generation = Generation.begin(run, stage)
    plan_stage(run, stage)
    _ = run.judge  # made here, not in two threads
    if generation and len(generation.missing) == 1:
        run.progress.say(
            "overlap: the stage is one shard, which updates wait for; lower "
            "--rollouts.shard_rollouts in a new run"
        )
    abandoned = Event()

    def on_decoded(_: Decoded) -> None:
        run.stop.check()
        if abandoned.is_set():
            raise RunStopped("the updates ended")

    run.beside = run.helper.submit(_make, run, stage, generation, on_decoded)
    try:
        yield
        run.wait_for_generation()
    finally:
        abandoned.set()
        wait([run.beside])
        run.beside = None
    score_stage(run, stage)  # all are: the stage's line of metrics


def _make(
    run: Run, stage: int, generation: Generation | None, on_decoded: Callable[[Decoded], None]
) -> None:
    """Publish what the stage lacks of rollouts and scores, each shard's scores after it."""
    rollouts = generation.rollouts if generation else ShardSet(run.dir.rollouts(stage), "rollouts")
    scores = ShardSet(run.dir.scores(stage), "scores")
    scorer = run.scorer(run.problems)
    for shard in unscored(run, stage, rollouts, scores):
        if shard in rollouts:
            scorer.make_shard(rollouts, scores, shard)
    for shard in generation.made(on_decoded) if generation else ():
        scorer.make_shard(rollouts, scores, shard)
