"""The phase that publishes a stage's missing rollouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from mugrpo.disk.publishing import passing
from mugrpo.engines.base import Decoded
from mugrpo.hosts.engines import samplers_of
from mugrpo.hosts.host import Host, Refreshed
from mugrpo.model.hardware import out_of_memory_explained
from mugrpo.rollouts.sampler import Draw
from mugrpo.rollouts.side_by_side import sampled_shards
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage


def generate(run: OpenRun, stage: Stage, host: Host) -> None:
    """Publish the stage's missing rollout shards.

    Raises RunStopped if the canary rejects the engines.
    """
    passing("stage")
    if lacking := stage.lacking():
        refreshed = refreshed_for(run, stage, host)
        size = run.config.schedule.group_size
        total = sum(map(len, stage.drawn)) * size
        missing = sum(len(stage.drawn[shard]) for shard in lacking) * size
        run.progress.begin(stage.heading("generate"), "rollouts", total, total - missing)
        for _ in publish_shards(run, stage, refreshed, counted(run)):
            pass
        run.progress.end()


def refreshed_for(run: OpenRun, stage: Stage, host: Host) -> Refreshed:
    """Return engines with the stage's policy."""
    # The canary gets the same responses, whichever shards are missing.
    return host.engines(stage.first_update, _draws(run, stage, 0), str(stage.number))


def publish_shards(
    run: OpenRun, stage: Stage, refreshed: Refreshed, on_decoded: Callable[[Decoded], None]
) -> Iterator[int]:
    """Generate the missing shards. Yield the number of each one after publishing it."""
    config, rollouts, drawn = run.config, stage.shards("rollouts"), stage.drawn
    samplers = samplers_of(
        run,
        refreshed.engines,
        str(stage.number),
        config.schedule.group_size,
        stage.first_update,
        dialogues=refreshed.dialogues,
    )
    missing = [(number, _draws(run, stage, number)) for number in stage.lacking()]
    pieces = pieces_of(sum(map(len, drawn)), len(drawn[0]), len(samplers))
    notes: dict[str, Any] = refreshed.notes
    with out_of_memory_explained("generation", config.engine.memory_remedy):
        for number, sampled in sampled_shards(samplers, missing, on_decoded, pieces=pieces):
            # No shard may be older than its policy. An engine in this process has it from memory;
            # others have read it from a folder that is published.
            if config.engine_in_process:
                run.folder.settle()
            sampled.publish(rollouts, number, **notes, policy_step=stage.first_update)
            notes = {"canary_gap": refreshed.canary_gap}  # the first has the refresh's seconds
            yield number


def _draws(run: OpenRun, stage: Stage, shard: int) -> list[Draw]:
    return [(run.problems[index], occurrence) for index, occurrence in stage.drawn[shard]]


def pieces_of(stage_groups: int, shard_groups: int, engines: int) -> int:
    """Return the number of pieces that each shard is cut into, so that every engine has work.

    It does not depend on the shards that are missing, so a run that was killed cuts its shards in
    the same way.
    """
    return math.ceil(engines / math.ceil(stage_groups / shard_groups))


def counted(run: OpenRun) -> Callable[[Decoded], None]:
    """Return a function that counts decoded responses as progress, and stops if asked to."""

    def count(decoded: Decoded) -> None:
        run.stop.check()
        tokens = sum(len(completion.ids) for _, completion in decoded.completions)
        run.progress.advance(len(decoded.completions), tokens)

    return count
