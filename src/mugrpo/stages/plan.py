"""Which groups a stage samples, and which of them each update trains on.

If every group is trained on, both are arithmetic. Dynamic sampling goes by rounds: the stage's own
groups first; then, while too few have right and wrong responses, one more shard of as many groups
as seem to be missing. What is sampled next follows from the scores of what was sampled before, so
it is the same after a kill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

from mugrpo.config.stages import DynamicSampling
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.shards import ShardSet, read_statuses, write_plan
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.selection import Group, batches, correctness_varies, further_groups
from mugrpo.stages.stage import Stage

ShardGroups = list[tuple[int, int]]  # (index of the problem, occurrence) of each of its groups


def stage_shards(stage: Stage) -> list[ShardGroups]:
    """Return the groups of every shard that the stage has to sample, as far as is known now.

    More may follow once all of these are scored, until the stage is planned.
    """
    if plan := _standing_plan(stage):
        stream = stage.schedule.stream(stage.number)
        return [list(islice(stream, groups)) for groups in plan.entry(0)["groups"]]
    return [shard for shard, _ in _sampled(stage)]


def is_made(stage: Stage, rollouts: ShardSet, shard: int) -> bool:
    """Return whether a shard is there, and of the policy that the stage begins with.

    It may be of another one: updates before the stage were made again on another machine, and a
    stage ended elsewhere. Shards from elsewhere do not tell.
    """
    if shard not in rollouts:
        return False
    step = rollouts.entry(shard).get("policy_step", stage.first_update)
    return bool(step == stage.first_update)


def require(stage: Stage, kind: str) -> None:
    """Raise UsageError if the stage lacks shards of `kind`."""
    have, wanted = shards_made(stage, kind)
    if have < wanted:
        before = "generate" if kind == "rollouts" else "score"
        raise UsageError(
            f"stage {stage.number} has {have} of {wanted} shards of {kind}; run `mugrpo {before} "
            f"{stage.folder.root} --stage {stage.number}` first"
        )


def shards_made(stage: Stage, kind: str) -> tuple[int, int]:
    """Return how many shards of `kind` ("rollouts", "scores") the stage has and needs."""
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    shards = range(len(stage_shards(stage)))
    if kind == "rollouts":
        return sum(shard in rollouts for shard in shards), len(shards)
    judge = stage.required_judge()
    return sum(scored(rollouts, scores, shard, judge) for shard in shards), len(shards)


def plan_stage(stage: Stage, say: Callable[[str], None]) -> None:
    """Publish the stage's batch plan: for every batch its groups, in the order they were sampled.

    Raises UsageError if shards made elsewhere are not the schedule's, RunStopped if dynamic
    sampling has not found enough groups.
    """
    if _standing_plan(stage):
        return
    rollouts, options = stage.shards("rollouts"), stage.config.sampling
    size, per_update = stage.config.schedule.group_size, stage.config.schedule.problems_per_update
    chosen, others, groups = list[Group](), list[Group](), list[int]()
    for number, (shard, varies) in enumerate(_sampled(stage)):
        _require_rows(rollouts, number, len(shard) * size)
        groups.append(len(shard))
        for index, (problem, _) in enumerate(shard):
            places = [(number, row) for row in range(index * size, (index + 1) * size)]
            (chosen if varies[index] else others).append(Group(problem, places))
    count = stage.schedule.batches(stage.number)
    full = batches(chosen, per_update, count)
    if isinstance(options, DynamicSampling):
        found = (
            f"stage {stage.number}: of {len(chosen) + len(others)} sampled groups {len(chosen)} "
            f"have right and wrong responses, enough for {len(full)} of {count} batches"
        )
        if len(full) < count and options.when_short == "fill":
            full = batches([*chosen, *others], per_update, count)
            found += "; the others are filled up"
        if len(full) < count:
            raise _short(found, options)
        say(found)
    write_plan(
        stage.shards("plan"),
        [[place for group in batch for place in group.places] for batch in full],
        groups=groups,
        rests_on=_rests_on(stage, len(groups)),
    )


def _require_rows(rollouts: ShardSet, number: int, rows: int) -> None:
    if number in rollouts and rollouts.entry(number)["rows"] != rows:
        raise UsageError(
            f"{rollouts.path(number)} has {rollouts.entry(number)['rows']} rollouts, not the "
            f"{rows} of the schedule: whole groups, and rollouts.shard_rollouts to a shard"
        )


def _standing_plan(stage: Stage) -> ShardSet | None:
    """Return the stage's plan, or None if it has none that counts.

    A plan that groups were chosen for by other scores counts only once an update is made by it.
    """
    plan = stage.shards("plan")
    if 0 not in plan:
        return None
    entry = plan.entry(0)
    same = entry["rests_on"] == _rests_on(stage, len(entry["groups"]))
    return plan if stage.begun() or same else None


def _rests_on(stage: Stage, shards: int) -> list[str] | None:
    """Return the checksums of the scores that decide which groups are trained on.

    None if all are.
    """
    if not isinstance(stage.config.sampling, DynamicSampling):
        return None
    scores = stage.shards("scores")
    return [scores.entry(number)["sha256"] for number in range(shards) if number in scores]


def _sampled(stage: Stage) -> Iterator[tuple[ShardGroups, list[bool]]]:
    """Yield each shard's groups, and which of them may be trained on ([] if not scored yet)."""
    options, schedule = stage.config.sampling, stage.schedule
    per_shard = math.ceil(stage.config.rollouts.shard_rollouts / schedule.options.group_size)
    stream = schedule.stream(stage.number)
    per_update, wanted = schedule.options.problems_per_update, schedule.batches(stage.number)
    own = list(islice(stream, wanted * per_update))
    shards = [own[start : start + per_shard] for start in range(0, len(own), per_shard)]
    if not isinstance(options, DynamicSampling):
        yield from ((shard, [True] * len(shard)) for shard in shards)
        return
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    kept, sampled, unscored = list[Group](), 0, False
    limit = math.floor(options.max_oversampling * len(own))
    for number, shard in enumerate(shards):  # grows
        varies = _varies(stage, rollouts, scores, number)
        yield shard, varies
        unscored = unscored or not varies
        kept += [Group(p, []) for (p, _), v in zip(shard, varies, strict=False) if v]
        sampled += len(shard)
        if number + 1 < len(shards) or unscored or sampled >= limit:
            continue
        if len(batches(kept, per_update, wanted)) < wanted:
            if is_made(stage, rollouts, number + 1):  # by what was known then
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


def _varies(stage: Stage, rollouts: ShardSet, scores: ShardSet, number: int) -> list[bool]:
    """Return whether each group of a shard has right and wrong responses; [] without scores."""
    if not is_made(stage, rollouts, number):
        return []
    if not scored(rollouts, scores, number, stage.required_judge()):
        return []
    statuses = read_statuses(scores, number)
    size = stage.config.schedule.group_size
    groups = (statuses[start : start + size] for start in range(0, len(statuses), size))
    return [correctness_varies(group, stage.config.rewards) for group in groups]


def _short(found: str, options: DynamicSampling) -> RunStopped:
    return RunStopped(
        f"{found} (sampling.max_oversampling = {options.max_oversampling:g}). The problems are too "
        "hard or too easy for the model: raise --sampling.max_oversampling, fill the updates up "
        "with --sampling.when_short fill, or train on every group with --sampling.name every (each "
        "with --force)"
    )
