"""Options of Mu-GRPO."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mugrpo.config.objectives.base import DualClip, ObjectiveOptions, RatioInterval


class MuGRPOOptions(ObjectiveOptions):
    """Mu-GRPO: relaxed ratio clipping and the negative-advantage veto."""

    name: Literal["mu_grpo"] = "mu_grpo"
    """Which objective."""
    ratio_clip: RatioInterval = (0.0, 5.0)
    dual_clip: DualClip = None
    veto_kappa: float = Field(1e-2, ge=0)
    """A ratio below this triggers the veto in a negative-advantage response; 0 turns it off."""
    veto_scope: Literal["suffix", "trigger", "post_trigger", "from_trigger", "response"] = "suffix"
    """Which tokens a trigger removes."""
