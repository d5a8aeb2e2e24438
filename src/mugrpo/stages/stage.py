"""One stage of a run: which groups it samples, and which groups each update trains on.

If every group is trained on, both are arithmetic. Dynamic sampling (DAPO, arXiv 2503.14476) works
in rounds: first the stage's own groups; then, while too few have both right and wrong responses,
one more shard with as many groups as seem to be missing. Each round follows from the scores of the
rounds before it, so it is the same after a kill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from mugrpo.config.rewards import RewardOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.training import DynamicSampling
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.metrics import truncation
from mugrpo.disk.records import Score, Status
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import Place, ShardSet, read_scores, write_plan
from mugrpo.rollouts.schedule import Schedule
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.statistics import refresh_metrics
from mugrpo.run.opening import OpenRun

OVERSAMPLING = 10  # times the groups that its updates need, which a stage samples at most
_SPARE = 1.1  # factor on the expected need: another round costs more than a few spare groups


@dataclass(frozen=True)
class Stage:
    """A stage: its number, the schedule it is part of, and its shards on disk."""

    number: int
    draws: Schedule
    folder: RunDir
    config: RunConfig
    judge: str  # fingerprint of everything that decides a score now

    @classmethod
    def of(cls, run: OpenRun, number: int) -> Stage:
        return cls(number, run.draws, run.folder, run.config, run.judge)

    @property
    def first_update(self) -> int:
        """Return the number of updates before the stage, which its behavior policy has seen."""
        return self.config.schedule.first_update(self.number)

    @property
    def end(self) -> int:
        """Return the number of updates when the stage is over."""
        return self.config.schedule.first_update(self.number + 1)

    @property
    def batches(self) -> int:
        """Return the number of batches that its updates train on."""
        return self.config.schedule.batches(self.number)

    @property
    def groups(self) -> int:
        """Return the number of groups that its updates need."""
        return self.batches * self.config.schedule.problems_per_update

    def shards(self, kind: str) -> ShardSet:
        """Return the shards of a kind: "rollouts", "scores", "plan", or logprobs' name."""
        return ShardSet(self.folder.shards(self.number, kind), kind)

    def heading(self, phase: str) -> str:
        """Return the heading of the progress line for a phase of the stage."""
        return f"stage {self.number} (last: {self.config.schedule.stages - 1})  {phase}"

    def begun(self) -> bool:
        """Return whether a checkpoint holds any of its updates."""
        return self.folder.newest_update() > self.first_update

    def required_judge(self) -> str | None:
        """Return the fingerprint that scores must carry, or None if any score is accepted.

        Any score is accepted in a stage whose updates are all made, and in a run that uses another
        run's rollouts.
        """
        trained = self.end <= self.folder.newest_update()
        return None if trained or self.folder.origin.exists() else self.judge


def reference_update(config: RunConfig, stage: int) -> int:
    """Return the number of updates that the reference policy of `stage` has seen."""
    period = config.reference_period
    return config.schedule.first_update(stage - stage % period) if period else 0


ShardGroups = list[tuple[int, int]]  # (index of the problem, occurrence) of each of its groups


@dataclass(frozen=True)
class Group:
    """A sampled group: its problem, and the place of each of its rollouts."""

    problem: int
    places: list[Place]


def stage_shards(stage: Stage) -> list[ShardGroups]:
    """Return the groups of every shard that the stage must sample, as known so far.

    Until the stage is planned, more shards may follow once all of these are scored.
    """
    if plan := _valid_plan(stage):
        stream = stage.draws.stream(stage.number)
        return [list(islice(stream, groups)) for groups in plan.entry(0)["groups"]]
    return [shard for shard, _ in _sampled(stage)]


def require(stage: Stage, kind: str) -> None:
    """Raise UsageError if the stage lacks shards of `kind`."""
    published, total = shards_made(stage, kind)
    if published < total:
        before = "generate" if kind == "rollouts" else "score"
        raise UsageError(
            f"stage {stage.number} has {published} of {total} shards of {kind}; run `mugrpo "
            f"{before} {stage.folder.root} --stage {stage.number}` first"
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
    """Publish the stage's batch plan: the groups of every batch, in the order they were sampled.

    Raises UsageError if the shards do not fit the schedule (they may come from elsewhere),
    RunStopped if dynamic sampling has not found enough groups.
    """
    if _valid_plan(stage):
        return
    rollouts, options = stage.shards("rollouts"), stage.config.sampling
    size = stage.config.schedule.group_size
    chosen, groups = list[Group](), list[int]()
    for number, (shard, varies) in enumerate(_sampled(stage)):
        _require_rows(rollouts, number, len(shard) * size)
        groups.append(len(shard))
        for index, (problem, _) in enumerate(shard):
            rows = range(index * size, (index + 1) * size)
            if varies[index]:
                chosen.append(Group(problem, [Place(number, row) for row in rows]))
    full = batches(chosen, stage.config.schedule.problems_per_update)[: stage.batches]
    if isinstance(options, DynamicSampling):
        summary = (
            f"stage {stage.number}: {len(chosen)} of {sum(groups)} sampled groups have both right "
            "and wrong responses (if nothing says what is right, different rewards), enough "
            f"for {len(full)} of {stage.batches} batches"
        )
        if len(full) < stage.batches:
            raise _short(stage, summary)
        say(summary)
    write_plan(
        stage.shards("plan"),
        [[place for group in batch for place in group.places] for batch in full],
        groups=groups,
        rests_on=_rests_on(stage, len(groups)),
    )


def batches(groups: Iterable[Group], size: int) -> list[list[Group]]:
    """Return full batches of `size` groups of different problems.

    Each group goes into the first batch that has room for it and lacks its problem, so groups keep
    their order. Groups that fill no batch are left out.
    """
    opened: list[dict[int, Group]] = []  # batches: problem -> its group
    first = 0  # all batches before this one are full
    for group in groups:
        number = first
        while number < len(opened) and (
            len(opened[number]) == size or group.problem in opened[number]
        ):
            number += 1
        if number == len(opened):
            opened.append({})
        opened[number][group.problem] = group
        while first < len(opened) and len(opened[first]) == size:
            first += 1
    return [list(batch.values()) for batch in opened if len(batch) == size]


def group_varies(scores: Sequence[Score], rewards: RewardOptions) -> bool:
    """Return whether a group has both right and other responses, whatever their rewards are.

    If nothing says what is right, return whether the rewards differ without the penalty on length.
    Responses that failed or are masked do not count.
    """
    counted = [score for score in scores if rewards.counts(score.status)]
    if all(score.status is not Status.GRADED for score in counted):
        return len({score.status is Status.RIGHT for score in counted}) == 2
    unpenalized = ((s.reward or 0.0) - s.parts.get("overlong", 0.0) for s in counted)
    return len({round(reward, 9) for reward in unpenalized}) > 1


def _require_rows(rollouts: ShardSet, number: int, rows: int) -> None:
    if number in rollouts and rollouts.entry(number)["rows"] != rows:
        raise UsageError(
            f"{rollouts.path(number)} has {rollouts.entry(number)['rows']} rollouts, not the "
            f"{rows} of the schedule: a shard holds rollouts.shard_rollouts, rounded up to whole "
            "groups, and the last shard the remainder"
        )


def _valid_plan(stage: Stage) -> ShardSet | None:
    """Return the stage's plan, or None if it has no valid one.

    A plan whose groups were chosen by other scores is valid only if updates have been made with it.
    """
    plan = stage.shards("plan")
    if 0 not in plan:
        return None
    entry = plan.entry(0)
    if stage.begun() or entry.get("rests_on") == _rests_on(stage, len(entry["groups"])):
        return plan
    return None


def _rests_on(stage: Stage, shards: int) -> list[str] | None:
    """Return the checksums of the scores that chose the groups, or None if the schedule did."""
    if not isinstance(stage.config.sampling, DynamicSampling):
        return None
    scores = stage.shards("scores")
    return [scores.entry(number)["sha256"] for number in range(shards) if number in scores]


def _sampled(stage: Stage) -> Iterator[tuple[ShardGroups, list[bool]]]:
    """Yield each shard's groups, and whether each may be trained on ([] if not scored yet)."""
    options, schedule = stage.config.sampling, stage.config.schedule
    per_shard = math.ceil(stage.config.rollouts.shard_rollouts / schedule.group_size)
    own = list(stage.draws.groups(stage.number))
    shards = [own[start : start + per_shard] for start in range(0, len(own), per_shard)]
    if not isinstance(options, DynamicSampling):
        yield from ((shard, [True] * len(shard)) for shard in shards)
        return
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    further_groups = islice(stage.draws.stream(stage.number), len(own), None)
    kept, sampled, unscored = list[Group](), 0, False
    limit = OVERSAMPLING * len(own)
    for number, shard in enumerate(shards):  # the loop may append a shard
        varies = _varies(stage, rollouts, scores, number)
        yield shard, varies
        unscored = unscored or not varies
        # places do not matter for the number of batches
        kept += [Group(p, []) for (p, _), v in zip(shard, varies, strict=False) if v]
        sampled += len(shard)
        if number + 1 < len(shards) or unscored or sampled >= limit:
            continue
        if len(batches(kept, schedule.problems_per_update)) < stage.batches:
            if number + 1 in rollouts:  # keep the size it was generated with
                further = rollouts.entry(number + 1)["rows"] // schedule.group_size
            else:
                share = (len(kept) + 1) / (sampled + 1)  # of groups that vary
                further = math.ceil(_SPARE * (len(own) - len(kept)) / share)
                further = max(further, schedule.problems_per_update)
                further = min(further, per_shard, limit - sampled)
            shards.append(list(islice(further_groups, further)))


def _varies(stage: Stage, rollouts: ShardSet, scores: ShardSet, number: int) -> list[bool]:
    """Return whether each group of a shard varies, or [] if the shard has no scores."""
    if not scored(rollouts, scores, number, stage.required_judge()):
        return []
    verdicts, size = read_scores(scores, number), stage.config.schedule.group_size
    groups = (verdicts[start : start + size] for start in range(0, len(verdicts), size))
    return [group_varies(group, stage.config.rewards) for group in groups]


def _short(stage: Stage, summary: str) -> RunStopped:
    measured = refresh_metrics(stage.shards("rollouts"), stage.shards("scores"))
    cut = truncation(measured, stage.config.rollouts.max_new_tokens)
    usual = "The problems are too hard or too easy for the model, or the reward never varies"
    return RunStopped(
        f"{summary}, {OVERSAMPLING} times as many as its updates need. {cut or usual}. You can "
        "also train on every group (--sampling.name every --force)"
    )
