"""The phase that publishes a stage's missing rollouts."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from mugrpo.disk.publishing import failpoint
from mugrpo.disk.records import WHOLE, Part
from mugrpo.engines.base import Decoded
from mugrpo.hosts.engines import samplers_of
from mugrpo.hosts.host import Host, Refreshed
from mugrpo.model.memory import out_of_memory_explained
from mugrpo.rollouts.sampler import SampledShard
from mugrpo.rollouts.schedule import Draw
from mugrpo.rollouts.side_by_side import pieces_of, sampled_shards
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage
from mugrpo.stages.work import working


def generate(run: OpenRun, stage: Stage, host: Host, part: Part = WHOLE) -> None:
    """Publish the missing rollout shards of a part of the stage.

    Raises RunStopped if the canary rejects the engines.
    """
    failpoint("stage")
    if lacking := stage.lacking(part):
        size = run.config.schedule.group_size
        total = sum(map(len, stage.drawn[part.number :: part.count])) * size
        missing = sum(len(stage.drawn[shard]) for shard in lacking) * size
        run.progress.begin(stage.heading("generate"), "rollouts", total, total - missing)
        count = counted(run)
        refresh = partial(refreshed_for, run, stage, host)
        for _ in publish_shards(run, stage, refresh, count, part, idle=host.sleep):
            pass
        run.progress.end()


def refreshed_for(run: OpenRun, stage: Stage, host: Host) -> Refreshed:
    """Return engines with the stage's policy."""
    # of the first shard, so that the canary's responses do not depend on what is missing
    return host.engines(stage.first_update, stage.drawn[0], str(stage.number))


def publish_shards(
    run: OpenRun,
    stage: Stage,
    refresh: Callable[[], Refreshed],
    on_decoded: Callable[[Decoded], None],
    part: Part = WHOLE,
    *,
    idle: Callable[[], None] = lambda: None,
) -> Iterator[int]:
    """Generate a part's missing shards. Yield the number of each one after publishing it.

    At the end all of them are published: what other processes are at work on is waited for. The
    engines of `refresh` are asked for when a shard is claimed, and `idle` is called before waiting.
    """
    config, rollouts, drawn = run.config, stage.shards("rollouts"), stage.drawn
    step, of = stage.first_update, (sum(map(len, drawn)), len(drawn[0]))
    with working(run, stage, "rollouts", part) as work:
        for free in work.rounds(idle):
            refreshed = refresh()
            notes: dict[str, Any] = refreshed.notes
            missing = ((number, drawn[number]) for number in free)
            how = (str(stage.number), config.schedule.group_size, step, missing, on_decoded)
            with closing(sampled(run, refreshed, *how, of=of)) as arriving:
                for number, shard in arriving:
                    # No shard may be older than its policy. An engine in this process has it from
                    # memory; others have read it from a folder that is published.
                    if config.engine_in_process:
                        run.folder.settle()
                    if work.holds(number):
                        shard.publish(rollouts, number, **notes, **work.about, policy_step=step)
                    # the first one has the refresh's seconds
                    notes = {"canary_gap": refreshed.canary_gap}
                    work.done(number)
                    yield number


def sampled(
    run: OpenRun,
    refreshed: Refreshed,
    stage: str,
    size: int,
    update: int,
    missing: Iterable[tuple[int, Sequence[Draw]]],
    on_decoded: Callable[[Decoded], None],
    *,
    of: tuple[int, int],
    temperature: float | None = None,
    top_p: float = 1.0,
) -> Generator[tuple[int, SampledShard], None, None]:
    """Yield (number, sampled shard) for each of the `missing` shards, as soon as it is sampled.

    They have `size` responses to each problem, seeded as those of `stage`, from engines with the
    policy after `update` updates. `of` is the number of groups of all shards together, and of one.
    """
    samplers = samplers_of(
        run,
        refreshed.engines,
        stage,
        size,
        update,
        temperature=temperature,
        top_p=top_p,
        dialogues=refreshed.dialogues,
    )
    pieces = pieces_of(*of, len(samplers))
    with out_of_memory_explained("generation", run.config.engine.memory_remedy):
        yield from sampled_shards(samplers, missing, on_decoded, pieces=pieces)


def counted(run: OpenRun) -> Callable[[Decoded], None]:
    """Return a function that counts decoded responses as progress, and stops if asked to."""

    def count(decoded: Decoded) -> None:
        run.stop.check()
        tokens = sum(len(completion.ids) for _, completion in decoded.completions)
        run.progress.advance(len(decoded.completions), tokens)

    return count
