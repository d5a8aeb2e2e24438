"""The schedule of stages, what a stage samples, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mugrpo.config.options import FIXED, ByStage, NamedOptions, Options, at_stage

# Ten times what the largest runs have, and what a machine can list: the groups of a stage are drawn
# into memory, and every update of the run is visited to find what is due.
_UPDATES, _GROUPS, _ROLLOUTS = 10**6, 10**7, 10**8
_GROWING = 1000  # stages; where a stage begins is a sum over those before it


class ScheduleOptions(Options):
    """How much is generated when, and how often it is trained on."""

    stages: int = Field(4, ge=1, le=_UPDATES)
    """Number of stages. At the start of each, the engine takes the newest weights and generates
    once. The run makes stages x batches x passes updates, even if `stage_until` ends stages early.
    """
    batches_per_stage: int = Field(64, ge=1, le=_UPDATES, json_schema_extra=FIXED)
    """Batches of rollouts generated per refresh."""
    growth: float = Field(1.0, gt=0, le=16, json_schema_extra=FIXED)
    """Batches of each stage, as a multiple of the stage before: with 2, every stage is twice as
    long. batches_per_stage is that of the first."""
    passes_per_batch: int = Field(1, ge=1, le=_UPDATES, json_schema_extra=FIXED)
    """Updates on each batch."""
    pass_order: Literal["batch", "stage"] = Field("batch", json_schema_extra=FIXED)
    """Make all updates on a batch before the next batch, or one on every batch of the stage before
    the next pass over them."""
    problems_per_update: int = Field(16, ge=1, le=_GROUPS, json_schema_extra=FIXED)
    """Problems per batch; each has one group of responses."""
    group_size: int = Field(8, ge=2, le=_ROLLOUTS, json_schema_extra=FIXED)
    """Responses per problem."""

    @model_validator(mode="after")
    def _size_is_bounded(self) -> Self:
        if self.growth != 1 and self.stages > _GROWING:
            raise ValueError(
                f"growth = {self.growth:g} with stages = {self.stages}: stages that grow may be "
                f"{_GROWING:,}; lower stages, or set growth = 1"
            )
        if (self.stages - 1) * math.log(self.growth) > math.log(1e3):
            raise ValueError(
                f"growth = {self.growth:g} makes the last of {self.stages} stages a thousand times "
                "as long as the first; lower it (1 makes all stages equal)"
            )
        largest = self.batches(self.stages - 1) * self.problems_per_update
        for what, options, count, most in (
            (
                "updates",
                "stages, batches_per_stage or passes_per_batch",
                self.total_updates,
                _UPDATES,
            ),
            ("groups in a stage", "batches_per_stage or problems_per_update", largest, _GROUPS),
            ("rollouts in a stage", "group_size", largest * self.group_size, _ROLLOUTS),
        ):
            if count > most:
                raise ValueError(f"it has {count:,} {what}, more than {most:,}; lower {options}")
        return self

    def batches(self, stage: int) -> int:
        """Return a stage's number of batches. Stages after the planned ones repeat the last."""
        return max(1, round(self.batches_per_stage * self.growth ** min(stage, self.stages - 1)))

    def updates(self, stage: int) -> int:
        """Return the updates of a stage, the literature's mu."""
        return self.batches(stage) * self.passes_per_batch

    def updates_between(self, first: int, end: int) -> int:
        """Return the updates of the stages from `first` up to, but not including, `end`."""
        if self.growth == 1:
            return (end - first) * self.updates_per_stage
        return sum(map(self.updates, range(first, end)))

    @property
    def updates_per_stage(self) -> int:
        """Return the updates of the first stage; without growth, of every stage."""
        return self.updates(0)

    @property
    def total_updates(self) -> int:
        return self.updates_between(0, self.stages)

    @property
    def groups_per_stage(self) -> int:
        return self.batches_per_stage * self.problems_per_update

    @property
    def rollouts_per_stage(self) -> int:
        return self.groups_per_stage * self.group_size

    @property
    def rollouts_per_update(self) -> int:
        return self.problems_per_update * self.group_size


class EveryGroup(NamedOptions):
    """Every group."""

    name: Literal["every"] = "every"


class DynamicSampling(NamedOptions):
    """Groups with both right and wrong responses; others are replaced by further samples (DAPO)."""

    name: Literal["dynamic"] = "dynamic"
    max_oversampling: float = Field(10.0, ge=1)
    """Give up once a stage has sampled this many times the groups that its updates need."""
    when_short: Literal["stop", "fill"] = "stop"
    """On giving up, stop the run, or fill the updates with other groups, which give hardly any
    gradient."""


Sampling = Annotated[EveryGroup | DynamicSampling, Field(discriminator="name")]


class AnyDifficulty(NamedOptions):
    """All problems."""

    name: Literal["any"] = Field("any", json_schema_extra=FIXED)


class RatedProblems(NamedOptions):
    """What the choices by solve rate share. A problem of unknown rate is always drawn."""

    column: str | None = Field(None, json_schema_extra=FIXED)
    """A column of the data with each problem's solve rate, from 0 to 1. It counts until a stage has
    sampled the problem."""
    memory: int | None = Field(None, ge=1, json_schema_extra=FIXED)
    """Forget a measured solve rate after N stages; never if unset."""
    spacing: int = Field(0, ge=0, json_schema_extra=FIXED)
    """Draw no problem that one of the N stages before drew."""


class DifficultyBand(RatedProblems):
    """Problems whose solve rate is in a band."""

    name: Literal["band"] = Field("band", json_schema_extra=FIXED)
    low: ByStage = Field((0.0,), json_schema_extra=FIXED)
    """Lowest solve rate. A list has one for each stage, the last one for all further stages."""
    high: ByStage = Field((1.0,), json_schema_extra=FIXED)
    """Highest solve rate, or a list of them as for `low`."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for stage in range(max(len(self.low), len(self.high))):
            low, high = at_stage(self.low, stage), at_stage(self.high, stage)
            if not 0 <= low <= high <= 1:
                raise ValueError(
                    f"difficulty.low = {low:g} and difficulty.high = {high:g} of stage {stage} are "
                    "no band within 0 to 1"
                )
        return self


class NearHalf(RatedProblems):
    """Each problem with probability 4 p (1 - p), where p is its solve rate."""

    name: Literal["half"] = Field("half", json_schema_extra=FIXED)


Difficulty = Annotated[AnyDifficulty | DifficultyBand | NearHalf, Field(discriminator="name")]


class ReplayOptions(Options):
    """Rollouts of earlier stages that updates train on besides those of their own stage."""

    share: float = Field(0.0, ge=0, le=0.9)
    """Share of an update's groups that earlier stages sampled. They come on top of
    schedule.problems_per_update. The first stage has none. 0 turns replay off."""
    stages: int = Field(1, ge=1)
    """Replay groups of the N stages before."""
    choice: Literal["uniform", "mixed"] = "uniform"
    """Draw among all groups that those stages planned to train on, or among those of them with both
    right and wrong responses."""

    def groups(self, problems_per_update: int) -> int:
        """Return how many groups an update replays."""
        return round(self.share / (1 - self.share) * problems_per_update)

    def faults(self, schedule: ScheduleOptions, until: str, reference_period: int) -> Iterator[str]:
        """Yield a message for each option of a run that replay does not work with."""
        if not self.share:
            return
        problems = schedule.problems_per_update
        if not self.groups(problems):
            yield (
                f"replay.share = {self.share:g} adds no group to updates of {problems} problems; "
                f"{1 / (problems + 1):.2g} adds one"
            )
        if schedule.stages == 1:
            yield "replay.share needs two stages or more, as the first one has nothing to replay"
        if until != "all_updates":
            yield (
                "replay.share needs stage_until.name = 'all_updates': a limit would end stages "
                "because their policy is far from those of earlier stages"
            )
        if reference_period:
            yield (
                "replay.share needs reference.period = 0, as the stored logprobs of earlier "
                "stages' rollouts are those of another reference"
            )


class AllUpdates(NamedOptions):
    """After all of its updates."""

    name: Literal["all_updates"] = "all_updates"

    @property
    def limit(self) -> float:
        """Return the value above which the stage ends: there is none."""
        return math.inf


class TokenVariation(NamedOptions):
    """After the update whose mean over tokens of max(0, 1 - ratio) is above the limit."""

    name: Literal["tv_token"] = "tv_token"
    limit: float = Field(0.05, gt=0, lt=1)
    """Total variation between policy and behavior policy per token, estimated on the update."""


class NegativeRatio(NamedOptions):
    """After the update whose largest ratio of a token with A < 0 is above the limit."""

    name: Literal["negative_ratio"] = "negative_ratio"
    limit: float = Field(100.0, gt=1)
    """The ratio between policy and behavior policy."""


class SequenceVariation(NamedOptions):
    """After the update whose mean over responses of max(0, 1 - ratio) is above the limit."""

    name: Literal["tv_sequence"] = "tv_sequence"
    limit: float = Field(0.5, gt=0, lt=1)
    """Total variation between policy and behavior policy per response. It is near 1 for long
    responses."""


StageUntil = Annotated[
    AllUpdates | TokenVariation | SequenceVariation | NegativeRatio, Field(discriminator="name")
]

# The metric of an update that a rule looks at.
MEASURED = {
    "tv_token": "tv_token",
    "tv_sequence": "tv_sequence",
    "negative_ratio": "ratio/negative/max",
}
