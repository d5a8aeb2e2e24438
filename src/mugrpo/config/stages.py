"""What a stage samples, and when it ends."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from mugrpo.config.options import NamedOptions


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


class AllUpdates(NamedOptions):
    """After all of its updates."""

    name: Literal["all_updates"] = "all_updates"

    @property
    def limit(self) -> float:
        """Return the total variation above which the stage ends: there is none."""
        return math.inf


class TokenVariation(NamedOptions):
    """After the update whose mean over tokens of max(0, 1 - ratio) is above the limit."""

    name: Literal["tv_token"] = "tv_token"
    limit: float = Field(0.05, gt=0, lt=1)
    """Total variation between policy and behavior policy per token, estimated on the update."""


class SequenceVariation(NamedOptions):
    """After the update whose mean over responses of max(0, 1 - ratio) is above the limit."""

    name: Literal["tv_sequence"] = "tv_sequence"
    limit: float = Field(0.5, gt=0, lt=1)
    """Total variation between policy and behavior policy per response. It is near 1 for long
    responses."""


StageUntil = Annotated[AllUpdates | TokenVariation | SequenceVariation, Field(discriminator="name")]
