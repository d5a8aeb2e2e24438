"""One stage of a run: the groups that it samples, its shards, and the groups that updates take.

A stage draws its groups once. With a surplus it draws more than its updates need, and they take
those that vary (the filter of DAPO, arXiv 2503.14476). Which ones follows from the scores alone, in
the order of the draws, and is stored nowhere: it is the same after a kill, and on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from mugrpo.config.rewards import RewardOptions
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import WHOLE, Part, Score, Status
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import Place, ShardSet, read_scores
from mugrpo.rollouts.schedule import Draw, Schedule
from mugrpo.rollouts.score import scored
from mugrpo.run.opening import OpenRun


@dataclass(frozen=True)
class Stage:
    """A stage, opened once: its number, the schedule it is part of, and its shards on disk.

    Its shard sets find what others publish meanwhile.
    """

    number: int
    draws: Schedule
    folder: RunDir
    config: RunConfig
    judge: str  # fingerprint of everything that decides a score now
    _sets: dict[str, ShardSet] = field(default_factory=dict, repr=False)

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
    def needed(self) -> int:
        """Return the number of groups that its updates take."""
        schedule = self.config.schedule
        return schedule.batches(self.number) * schedule.problems_per_update

    @cached_property
    def drawn(self) -> list[list[Draw]]:
        """The groups of each of its shards, in the order in which they are drawn."""
        stream = self.draws.stream(self.number)
        return [list(islice(stream, size)) for size in self.config.shards_of(self.number)]

    def shards(self, kind: str) -> ShardSet:
        """Return the shards of a kind: "rollouts", "scores", or logprobs' name."""
        if kind not in self._sets:
            self._sets[kind] = ShardSet(self.folder.shards(self.number, kind), kind)
        return self._sets[kind]

    def lacking(self, part: Part = WHOLE) -> list[int]:
        """Return the rollout shards of a part that are not published."""
        return [shard for shard in self.numbers(part) if not self.has("rollouts", shard)]

    def unscored(self, part: Part = WHOLE) -> list[int]:
        """Return the shards of a part without the required judge's scores of their rollouts."""
        return [shard for shard in self.numbers(part) if not self.has("scores", shard)]

    def has(self, kind: str, shard: int) -> bool:
        """Return whether a shard of "rollouts" is published, or its "scores" are, see `scored`."""
        return shard in self.shards(kind) if kind == "rollouts" else self.scored(shard)

    def is_there(self) -> bool:
        """Return whether all its shards are published, whatever they hold."""
        kinds = (self.shards("rollouts"), self.shards("scores"))
        return all(shard in shards for shards in kinds for shard in self.numbers())

    def numbers(self, part: Part = WHOLE) -> range:
        """Return the numbers of the shards of a part."""
        return range(part.number, len(self.drawn), part.count)

    def scored(self, shard: int) -> bool:
        """Return whether a shard has the required judge's scores of its current rollouts."""
        judge = self.required_judge()
        return scored(self.shards("rollouts"), self.shards("scores"), shard, judge)

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

    def require(self, *kinds: str, part: Part = WHOLE) -> None:
        """Raise UsageError if a part lacks shards of `kinds`: "rollouts", "scores"."""
        for kind in kinds:
            made = kind == "rollouts"
            if missing := self.lacking(part) if made else self.unscored(part):
                before, total = "generate" if made else "score", len(self.numbers(part))
                of = f"part {part} of stage" if part.count > 1 else "stage"
                which = f" --part {part}" if part.count > 1 else ""
                raise UsageError(
                    f"{of} {self.number} has {total - len(missing)} of {total} shards of {kind}; "
                    f"run `mugrpo {before} {self.folder.root} --stage {self.number}{which}` first"
                )


def reference_update(config: RunConfig, stage: int) -> int:
    """Return the number of updates that the reference policy of `stage` has seen."""
    period = config.reference_period
    return config.schedule.first_update(stage - stage % period) if period else 0


class Selection:
    """The groups that the batches of a stage take, as far as its scores are known.

    Without a surplus a batch takes the next ones, whatever their scores. With a surplus it takes
    the next ones that vary. If too few of a stage do, the first of the others fill what is left.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._taken: list[tuple[int, int]] = []  # (shard, number in the shard) of each group
        self._alike: list[tuple[int, int]] = []
        self._shards = 0  # that have been looked at

    def batch(self, number: int) -> list[Place] | None:
        """Return the places of a batch's rollouts, or None as long as it lacks scores.

        Raises UsageError if a shard does not fit the schedule; it may come from elsewhere.
        """
        schedule = self._stage.config.schedule
        first = number * schedule.problems_per_update
        end, size = first + schedule.problems_per_update, schedule.group_size
        while len(self._taken) < end:
            if not self._look_at_next():
                return None
        return [
            Place(shard, group * size + sample)
            for shard, group in self._taken[first:end]
            for sample in range(size)
        ]

    def _look_at_next(self) -> bool:
        """Look at the next shard, or after the last one take groups that do not vary.

        Return False if the shard is not scored, or if no group is left.
        """
        if self._shards == len(self._stage.drawn):
            left = self._stage.needed - len(self._taken)
            self._taken += self._alike[:left]
            return left > 0
        if (varies := varying(self._stage, self._shards)) is None:
            return False
        for group, one in enumerate(varies):
            (self._taken if one else self._alike).append((self._shards, group))
        self._shards += 1
        return True


def varying(stage: Stage, shard: int) -> list[bool] | None:
    """Return which groups of a shard updates may take first, or None until it is scored.

    Without a surplus they may take all, whatever the scores. Raises UsageError if the shard does
    not fit the schedule.
    """
    groups, size = len(stage.drawn[shard]), stage.config.schedule.group_size
    _require_rows(stage.shards("rollouts"), shard, groups * size)
    if stage.config.sampling.surplus == 1:
        return [True] * groups
    if not stage.scored(shard):
        return None
    verdicts = read_scores(stage.shards("scores"), shard)
    own = (verdicts[start : start + size] for start in range(0, groups * size, size))
    return [group_varies(scores, stage.config.rewards) for scores in own]


def surplus_text(stage: Stage) -> str | None:
    """Return how many groups of a scored stage with a surplus vary, None without a surplus."""
    if stage.config.sampling.surplus == 1:
        return None
    each = [varies for n in range(len(stage.drawn)) for varies in varying(stage, n) or ()]
    short = stage.needed - sum(each)
    text = f"stage {stage.number}: {sum(each)} of {len(each)} groups vary, {stage.needed} are taken"
    return f"{text}; {short} of these do not vary and give no gradient" if short > 0 else text


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
