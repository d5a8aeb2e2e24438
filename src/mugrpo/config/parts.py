"""The parts of an update besides its objective: masks, corrections, a reference, the step size."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mugrpo.config.base import Part
from mugrpo.config.objectives import RatioInterval


class VetoOptions(Part):
    """Tokens that a trigger token removes from a response with a negative advantage (Mu-GRPO)."""


class NoVeto(VetoOptions):
    """No token is removed."""

    name: Literal["off"] = "off"


class NegativeAdvantageVeto(VetoOptions):
    """Tokens after one whose ratio has fallen below kappa; scope says which."""

    name: Literal["negative_advantage"] = "negative_advantage"
    kappa: float = Field(1e-2, ge=0)
    """A ratio below this is a trigger. 0 turns the veto off."""
    scope: Literal["suffix", "trigger", "post_trigger", "from_trigger", "response"] = "suffix"
    """Tokens that a trigger removes."""


Veto = Annotated[NoVeto | NegativeAdvantageVeto, Field(discriminator="name")]


class SequenceMaskOptions(Part):
    """Whole responses that are left out."""


class NoSequenceMask(SequenceMaskOptions):
    """No response is left out."""

    name: Literal["off"] = "off"


class OffPolicySequenceMask(SequenceMaskOptions):
    """Responses with a negative advantage that the policy has moved far away from."""

    name: Literal["off_policy"] = "off_policy"
    delta: float = Field(0.5, ge=0)
    """Leave a response out if the mean of log(behavior / policy) over its tokens is above this."""


SequenceMask = Annotated[NoSequenceMask | OffPolicySequenceMask, Field(discriminator="name")]


class CorrectionOptions(Part):
    """The weight w = trainer's / engine's probability of a token under the behavior policy."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("trainer_behavior_logprobs",)


class NoCorrection(CorrectionOptions):
    """The engine's logprobs are used as they are."""

    name: Literal["off"] = "off"

    @property
    def needs(self) -> tuple[str, ...]:
        return ()


class TruncatedCorrection(CorrectionOptions):
    """min(w, cap) (truncated importance sampling)."""

    name: Literal["truncated"] = "truncated"
    cap: float = Field(2.0, gt=0)
    """The largest weight."""
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or their product for the whole response."""


class MaskedCorrection(CorrectionOptions):
    """w if it is within an interval, else 0 (masked importance sampling)."""

    name: Literal["masked"] = "masked"
    interval: RatioInterval = Field(
        (0.0, 2.0), description="Interval [low, high] in which w is kept."
    )
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or their product for the whole response."""


Correction = Annotated[
    NoCorrection | TruncatedCorrection | MaskedCorrection, Field(discriminator="name")
]


class NoReference(Part):
    """No penalty."""

    name: Literal["off"] = "off"


class KLReference(Part):
    """coefficient x KL(policy || reference), estimated on the rollouts."""

    no_knobs = ("name", "coefficient", "period")
    name: Literal["kl"] = "kl"
    coefficient: float = Field(1e-3, gt=0)
    """Weight of the divergence."""
    corrected: bool = True
    """Multiply the estimate by the importance ratio; without it, the estimate is biased on stale
    tokens. This is TRL's use_bias_correction_kl, which is on by default too."""
    period: int = Field(0, ge=0)
    """Every N stages, the policy becomes the reference. 0 keeps the initial model."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("reference_logprobs",)


Reference = Annotated[NoReference | KLReference, Field(discriminator="name")]


class PlainStep(Part):
    """The factor is 1."""

    name: Literal["plain"] = "plain"


class ESSStep(Part):
    """sqrt(effective sample size / responses), from the ratios of the responses (VCPO)."""

    name: Literal["ess"] = "ess"


Step = Annotated[PlainStep | ESSStep, Field(discriminator="name")]
