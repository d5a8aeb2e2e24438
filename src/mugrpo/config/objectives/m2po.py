"""Options of M2PO."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mugrpo.config.objectives.base import ObjectiveOptions


class M2POOptions(ObjectiveOptions):
    """M2PO: the second moment of the log ratio is kept under a bound by masking, without a clip."""

    name: Literal["m2po"] = "m2po"
    """Which objective."""
    second_moment_limit: float = Field(0.04, gt=0)
    """Bound on the mean squared log ratio of the tokens that move away from the behavior policy."""
