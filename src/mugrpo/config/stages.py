"""What a stage samples, and when it ends."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mugrpo.config.options import NamedOptions

# ---- which groups are trained on ----


class SamplingOptions(NamedOptions):
    """Which of the sampled groups are trained on."""


class EveryGroup(SamplingOptions):
    """Every group."""

    name: Literal["every"] = "every"
    """Which sampling."""


class DynamicSampling(SamplingOptions):
    """Groups with right and with wrong responses; others are sampled in their place (DAPO)."""

    name: Literal["dynamic"] = "dynamic"
    """Which sampling."""
    max_oversampling: float = Field(10.0, ge=1)
    """Give up once a stage has sampled so many times the groups that its updates need."""
    when_short: Literal["stop", "fill"] = "stop"
    """Then stop the run, or fill the updates up with other groups, which hardly give a gradient."""


# ---- when a stage ends ----


class StageUntilOptions(NamedOptions):
    """When a stage ends before all of its updates are made."""


class AllUpdates(StageUntilOptions):
    """Never."""

    name: Literal["all_updates"] = "all_updates"
    """Which rule."""


class TokenVariation(StageUntilOptions):
    """After the update whose mean over tokens of max(0, 1 - ratio) is above the limit."""

    name: Literal["tv_token"] = "tv_token"
    """Which rule."""
    limit: float = Field(0.05, gt=0, lt=1)
    """Total variation between policy and behavior policy, a token, estimated on the update."""


class SequenceVariation(StageUntilOptions):
    """After the update whose mean over responses of max(0, 1 - ratio) is above the limit."""

    name: Literal["tv_sequence"] = "tv_sequence"
    """Which rule."""
    limit: float = Field(0.5, gt=0, lt=1)
    """Total variation between policy and behavior policy, a response; near 1 for long ones."""
