"""Options of GRPO."""

from __future__ import annotations

from typing import Literal

from mugrpo.config.objectives.base import DualClip, ObjectiveOptions, RatioInterval, Reduction


class GRPOOptions(ObjectiveOptions):
    """GRPO: the PPO min form with group-normalized advantages."""

    name: Literal["grpo"] = "grpo"
    """Which objective."""
    reduction: Reduction = "sequence_mean"
    ratio_clip: RatioInterval = (0.8, 1.2)
    dual_clip: DualClip = None
