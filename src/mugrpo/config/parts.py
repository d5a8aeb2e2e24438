"""What goes with an objective: masks, corrections, a reference policy, the step's size."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mugrpo.config.objectives import Level, Part, RatioInterval

# ---- masks ----


class VetoOptions(Part):
    """What a trigger token takes out of a response with a negative advantage (Mu-GRPO)."""


class NoVeto(VetoOptions):
    """Nothing."""

    name: Literal["off"] = "off"
    """Which veto."""


class NegativeAdvantageVeto(VetoOptions):
    """The suffix behind a token that the policy has nearly given up."""

    name: Literal["negative_advantage"] = "negative_advantage"
    """Which veto."""
    kappa: float = Field(1e-2, ge=0)
    """A ratio below this is a trigger; 0 turns the veto off."""
    scope: Literal["suffix", "trigger", "post_trigger", "from_trigger", "response"] = "suffix"
    """Which tokens a trigger removes."""


class SequenceMaskOptions(Part):
    """Which whole responses are taken out."""


class NoSequenceMask(SequenceMaskOptions):
    """None."""

    name: Literal["off"] = "off"
    """Which mask."""


class OffPolicySequenceMask(SequenceMaskOptions):
    """Those with a negative advantage that the policy has moved far away from."""

    name: Literal["off_policy"] = "off_policy"
    """Which mask."""
    delta: float = Field(0.5, ge=0)
    """Mean of log(behavior / policy) over a response's tokens from which it is left out."""


# ---- correction of an engine that samples from other probabilities than the trainer's ----


class CorrectionOptions(Part):
    """The weight w = trainer / engine, both of the behavior policy's weights."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("trainer_behavior_logprobs",)


class NoCorrection(CorrectionOptions):
    """None: the engine's log-probabilities are taken as they are."""

    name: Literal["off"] = "off"
    """Which correction."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ()


class TruncatedCorrection(CorrectionOptions):
    """min(w, cap) (truncated importance sampling)."""

    name: Literal["truncated"] = "truncated"
    """Which correction."""
    cap: float = Field(2.0, gt=0)
    """The largest weight."""
    level: Level = "token"
    """A weight for each token, or their product for the response."""


class MaskedCorrection(CorrectionOptions):
    """w where it is within an interval, else 0 (masked importance sampling)."""

    name: Literal["masked"] = "masked"
    """Which correction."""
    interval: RatioInterval = (0.0, 2.0)
    level: Level = "token"
    """A weight for each token, or their product for the response."""


# ---- reference policy ----


class ReferenceOptions(Part):
    """A penalty on leaving a reference policy."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("reference_logprobs",)


class NoReference(ReferenceOptions):
    """None."""

    name: Literal["off"] = "off"
    """Which penalty."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ()


class KLReference(ReferenceOptions):
    """coefficient x KL(policy || reference), estimated on the rollouts."""

    name: Literal["kl"] = "kl"
    """Which penalty."""
    coefficient: float = Field(1e-3, gt=0)
    """Weight of the divergence."""
    corrected: bool = True
    """Multiply the estimate by the importance ratio, without which stale tokens give another
    expectation; TRL's use_bias_correction_kl, on by default there too."""
    period: int = Field(0, ge=0)
    """Stages after which the reference becomes the policy; 0: it stays the initial model."""

    @property
    def knobs(self) -> dict[str, Any]:
        return self.model_dump(include={"corrected"})


# ---- step ----


class StepOptions(Part):
    """What the learning rate is multiplied with at an update."""


class PlainStep(StepOptions):
    """Nothing."""

    name: Literal["plain"] = "plain"
    """Which scaling."""


class ESSStep(StepOptions):
    """sqrt(effective sample size / responses) of the responses' ratios (VCPO)."""

    name: Literal["ess"] = "ess"
    """Which scaling."""
