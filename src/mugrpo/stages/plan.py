"""Which groups a stage samples, and which of them each update trains on.

Where every group is trained on, both are arithmetic. Dynamic sampling goes by rounds: the stage's
own groups first; then, as long as too few have right and wrong responses, one further shard of as
many groups as seem to be missing. What is sampled next follows from the scores of what was sampled
before, so it is the same after a kill.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from mugrpo.config.stages import DynamicSampling
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.shards import ShardSet, read_statuses, write_plan
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.selection import Group, batches, correctness_varies, further_groups
from mugrpo.run.run import Run

Shard = list[tuple[int, int]]  # (index of the problem, occurrence) of each of its groups


def stage_shards(run: Run, stage: int) -> list[Shard]:
    """The groups of every shard that the stage has to sample, as far as is known now.

    More may follow once all of these are scored, until the stage is planned.
    """
    if plan := _standing_plan(run, stage):
        stream = run.schedule.stream(stage)
        return [list(islice(stream, groups)) for groups in plan.entry(0)["groups"]]
    return [shard for shard, _ in _sampled(run, stage)]


def is_made(run: Run, stage: int, rollouts: ShardSet, shard: int) -> bool:
    """Whether a shard is there, and of the policy that the stage begins with.

    Another one it has where the updates before the stage were made anew, on another machine, and a
    stage ended elsewhere. Shards from elsewhere do not tell.
    """
    first_update = run.schedule.first_update(stage)
    return (
        shard in rollouts and rollouts.entry(shard).get("policy_step", first_update) == first_update
    )


def require(run: Run, stage: int, kind: str) -> None:
    """Raise UsageError where the stage lacks shards of `kind`."""
    have, wanted = shards_made(run, stage, kind)
    if have < wanted:
        before = "generate" if kind == "rollouts" else "score"
        raise UsageError(
            f"stage {stage} has {have} of {wanted} shards of {kind}; run `mugrpo {before} "
            f"{run.dir.root} --stage {stage}` first"
        )


def shards_made(run: Run, stage: int, kind: str) -> tuple[int, int]:
    """How many shards of `kind` ("rollouts" or "scores") the stage has, and how many it needs."""
    rollouts = ShardSet(run.dir.rollouts(stage), "rollouts")
    scores = ShardSet(run.dir.scores(stage), "scores")
    shards = range(len(stage_shards(run, stage)))
    if kind == "rollouts":
        return sum(shard in rollouts for shard in shards), len(shards)
    judge = run.judge_of(stage)
    return sum(scored(rollouts, scores, shard, judge) for shard in shards), len(shards)


def plan_stage(run: Run, stage: int) -> None:
    """Publish the stage's batch plan: for every batch its groups, in the order they were sampled.

    Raises UsageError where shards made elsewhere are not the schedule's, and RunStopped where
    dynamic sampling has not found enough groups.
    """
    if _standing_plan(run, stage):
        return
    rollouts = ShardSet(run.dir.rollouts(stage), "rollouts")
    size, per_update = run.config.schedule.group_size, run.config.schedule.problems_per_update
    chosen, others, groups = list[Group](), list[Group](), list[int]()
    for number, (shard, varies) in enumerate(_sampled(run, stage)):
        if number in rollouts and rollouts.entry(number)["rows"] != len(shard) * size:
            raise UsageError(
                f"{rollouts.path(number)} has {rollouts.entry(number)['rows']} rollouts, not the "
                f"{len(shard) * size} of the schedule: whole groups, and rollouts.shard_rollouts "
                "to a shard"
            )
        groups.append(len(shard))
        for index, (problem, _) in enumerate(shard):
            places = [(number, row) for row in range(index * size, (index + 1) * size)]
            (chosen if varies[index] else others).append(Group(problem, places))
    count = run.schedule.batches(stage)
    full = batches(chosen, per_update, count)
    if isinstance(run.config.sampling, DynamicSampling):
        found = (
            f"stage {stage}: of {len(chosen) + len(others)} sampled groups {len(chosen)} have "
            f"right and wrong responses, enough for {len(full)} of {count} batches"
        )
        if len(full) < count and run.config.sampling.when_short == "fill":
            full = batches([*chosen, *others], per_update, count)
            found += "; the others are filled up"
        if len(full) < count:
            raise _short(found, run.config.sampling)
        run.progress.say(found)
    write_plan(
        ShardSet(run.dir.plan(stage), "plan"),
        [[place for group in batch for place in group.places] for batch in full],
        groups=groups,
        rests_on=_rests_on(run, stage, len(groups)),
    )


def _standing_plan(run: Run, stage: int) -> ShardSet | None:
    """The stage's plan, where it has one that counts.

    A plan that groups were chosen for by other scores counts only once an update is made by it.
    """
    plan = ShardSet(run.dir.plan(stage), "plan")
    if 0 not in plan:
        return None
    entry = plan.entry(0)
    begun = run.newest_update > run.schedule.first_update(stage)
    if begun or entry["rests_on"] == _rests_on(run, stage, len(entry["groups"])):
        return plan
    return None


def _rests_on(run: Run, stage: int, shards: int) -> list[str] | None:
    """The checksums of the scores that decide which groups are trained on, None where all are."""
    if not isinstance(run.config.sampling, DynamicSampling):
        return None
    scores = ShardSet(run.dir.scores(stage), "scores")
    return [scores.entry(number)["sha256"] for number in range(shards) if number in scores]


def _sampled(run: Run, stage: int) -> Iterator[tuple[Shard, list[bool]]]:
    """Each shard's groups, and which of them may be trained on (none known: not scored yet)."""
    options, schedule = run.config.sampling, run.schedule
    per_shard = math.ceil(run.config.rollouts.shard_rollouts / schedule.options.group_size)
    stream = schedule.stream(stage)
    per_update, wanted = schedule.options.problems_per_update, schedule.batches(stage)
    own = list(islice(stream, wanted * per_update))
    shards = [own[start : start + per_shard] for start in range(0, len(own), per_shard)]
    if not isinstance(options, DynamicSampling):
        yield from ((shard, [True] * len(shard)) for shard in shards)
        return
    rollouts = ShardSet(run.dir.rollouts(stage), "rollouts")
    scores = ShardSet(run.dir.scores(stage), "scores")
    kept, sampled, unscored = list[Group](), 0, False
    limit = math.floor(options.max_oversampling * len(own))
    for number, shard in enumerate(shards):  # grows
        varies = _varies(run, stage, rollouts, scores, number)
        yield shard, varies
        unscored = unscored or not varies
        kept += [Group(p, []) for (p, _), v in zip(shard, varies, strict=False) if v]
        sampled += len(shard)
        if number + 1 < len(shards) or unscored or sampled >= limit:
            continue
        if len(batches(kept, per_update, wanted)) < wanted:
            if is_made(run, stage, rollouts, number + 1):  # by what was known then
                more = rollouts.entry(number + 1)["rows"] // schedule.options.group_size
            else:
                more = further_groups(
                    needed=len(own),
                    kept=len(kept),
                    sampled=sampled,
                    least=per_update,
                    most=min(per_shard, limit - sampled),
                )
            shards.append(list(islice(stream, more)))


def _varies(run: Run, stage: int, rollouts: ShardSet, scores: ShardSet, number: int) -> list[bool]:
    """Whether each group of a shard has right and wrong responses; [] where it is not scored."""
    if not is_made(run, stage, rollouts, number):
        return []
    if not scored(rollouts, scores, number, run.judge_of(stage)):
        return []
    statuses = read_statuses(scores, number)
    size = run.config.schedule.group_size
    groups = (statuses[start : start + size] for start in range(0, len(statuses), size))
    return [correctness_varies(group, run.config.rewards) for group in groups]


def _short(found: str, options: DynamicSampling) -> RunStopped:
    return RunStopped(
        f"{found} (sampling.max_oversampling = {options.max_oversampling:g}). The problems are too "
        "hard or too easy for the model: raise --sampling.max_oversampling, fill the updates up "
        "with --sampling.when_short fill, or train on every group with --sampling.name every (each "
        "with --force)"
    )
