"""What an update maximizes: advantages, objectives, masks, corrections, a reference.

Each part is chosen by its name and has only the options that apply to it.
`mugrpo objectives` lists them with their papers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from mugrpo.config.base import ObjectiveOptions, Part, PathOrName, one_of


def _ordered(interval: tuple[float, float]) -> tuple[float, float]:
    low, high = interval
    if not 0 <= low <= 1 <= high or low == high:
        needed = "0 <= low <= 1 <= high; an epsilon of 0.2 is [0.8, 1.2]"
        raise ValueError(f"[{low}, {high}] is not a ratio interval: it needs {needed}")
    return interval


RatioInterval = Annotated[
    tuple[float, float],
    AfterValidator(_ordered),
    Field(description="Interval [low, high] that the importance ratio is clipped to."),
]
ZeroVarianceMask = Annotated[
    bool,
    Field(description="Exclude groups of equal rewards from the gradient, including a KL term's."),
]


class AdvantageOptions(Part):
    """How rewards become advantages."""

    no_knobs = ("name", "zero_variance_mask")
    zero_variance_mask: ZeroVarianceMask = True


class GroupAdvantage(AdvantageOptions):
    """(R - mean) / standard deviation over the group (GRPO)."""

    name: Literal["group"] = "group"
    std: Literal["unbiased", "population", "none"] = "unbiased"
    """Standard deviation that the advantages are divided by; "population" as in off-policy GRPO,
    "none" for Dr. GRPO."""


class ShiftedAdvantage(AdvantageOptions):
    """R - baseline with the same baseline for every problem (TOPR)."""

    name: Literal["shifted"] = "shifted"
    zero_variance_mask: ZeroVarianceMask = False
    baseline: float = 0.5
    """Subtracted from every reward."""


class AsymREAdvantage(AdvantageOptions):
    """R - (mean + delta) over the group (AsymRE)."""

    name: Literal["asymre"] = "asymre"
    zero_variance_mask: ZeroVarianceMask = False
    delta: float = -0.1
    """Added to the group's mean. Below 0 it favors right responses over wrong ones."""


class OfFile(Part):
    """A part of your own, from a Python file."""

    name: Literal["file"] = "file"
    path: PathOrName
    """The file; see docs/objectives.md."""
    options: dict[str, float] = Field(default_factory=dict)
    """Keyword arguments of the file's function."""

    @property
    def knobs(self) -> dict[str, Any]:
        return dict(self.options)


class FileAdvantage(OfFile, AdvantageOptions):
    """Advantages of your own, from a Python file."""


Advantage = Annotated[
    GroupAdvantage | ShiftedAdvantage | AsymREAdvantage | FileAdvantage, Field(discriminator="name")
]


class ProximalOptions(ObjectiveOptions):
    """An objective that may use a proximal policy."""

    no_knobs = ("name", "proximal_period")
    proximal_period: int = Field(1, ge=1)
    """Updates for which the proximal policy stays the same, if one is used."""


class GRPOOptions(ProximalOptions):
    """The PPO min form, -min(r A, clip(r) A)."""

    name: Literal["grpo"] = "grpo"
    ratio_clip: RatioInterval = (0.8, 1.2)
    dual_clip: float | None = Field(None, gt=1)
    """Bound c on the weight of tokens with a negative advantage; no bound if unset."""
    level: Literal["token", "sequence"] = "token"
    """One ratio per token, or the geometric mean over the response (GSPO)."""
    clip_center: Literal["behavior", "proximal"] = "behavior"
    """Clip around 1, or around the proximal policy's ratio (off-policy GRPO)."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("proximal_logprobs",) if self.clip_center == "proximal" else ()


class KLSurrogateOptions(ObjectiveOptions):
    """The unclipped surrogate with a penalty on KL(policy || behavior policy)."""

    name: Literal["kl_surrogate"] = "kl_surrogate"
    penalty: float = Field(0.1, ge=0)
    """Weight of the KL divergence."""


class CISPOOptions(ObjectiveOptions):
    """The clipped ratio as a constant weight: every token keeps its gradient."""

    name: Literal["cispo"] = "cispo"
    ratio_clip: RatioInterval = (0.0, 5.0)


class M2POOptions(ObjectiveOptions):
    """Masking keeps the second moment of the log ratio below a bound, without a clip."""

    name: Literal["m2po"] = "m2po"


class DecoupledPPOOptions(ProximalOptions):
    """The PPO min form around a proximal policy, weighted back to the behavior policy."""

    name: Literal["decoupled_ppo"] = "decoupled_ppo"
    ratio_clip: RatioInterval = (0.8, 1.2)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("proximal_logprobs",)


class TOPROptions(ObjectiveOptions):
    """No ratio on positive advantages; the response's ratio, at most 1, on negative ones."""

    name: Literal["topr"] = "topr"
    taper: Literal["response", "prefix", "smallest", "mean", "token"] = "response"
    """The ratio that weighs a token with a negative advantage: of its response, of its prefix, the
    smallest up to it, the geometric mean over the response, or its own."""
    negative_weight: float = Field(1.0, ge=0, le=1)
    """A further weight of tokens with a negative advantage."""


class MinPROOptions(ObjectiveOptions):
    """The PPO min form on each token's ratio times the smallest ratio before it."""

    name: Literal["minpro"] = "minpro"
    ratio_clip: RatioInterval = (0.8, 1.2)


class CTPOOptions(ObjectiveOptions):
    """The PPO min form on the ratio of a token and its prefix, clipped by its position."""

    name: Literal["ctpo"] = "ctpo"
    log_clip: tuple[Annotated[float, Field(lt=0)], Annotated[float, Field(gt=0)]] = (-0.025, 0.05)
    """Interval of the logarithm of that ratio, for a token at position t, is sqrt(t) times this."""


class ReinforceOptions(ObjectiveOptions):
    """-A log pi, without a ratio (AsymRE if combined with its advantage)."""

    name: Literal["reinforce"] = "reinforce"


class VESPOOptions(ObjectiveOptions):
    """-A log pi with a gamma-shaped weight on the response's ratio."""

    name: Literal["vespo"] = "vespo"


class FileOptions(OfFile, ObjectiveOptions):
    """An objective of your own, from a Python file."""


if TYPE_CHECKING:
    Objective = ObjectiveOptions
else:
    Objective = one_of(
        "objectives",
        GRPOOptions,
        KLSurrogateOptions,
        CISPOOptions,
        M2POOptions,
        DecoupledPPOOptions,
        TOPROptions,
        MinPROOptions,
        CTPOOptions,
        ReinforceOptions,
        VESPOOptions,
        FileOptions,
    )


class Off(Part):
    """Left out."""

    name: Literal["off"] = "off"


class NegativeAdvantageVeto(Part):
    """Tokens after one whose ratio has fallen below the threshold; scope says which."""

    name: Literal["negative_advantage"] = "negative_advantage"
    threshold: float = Field(1e-2, ge=0)
    """A ratio below this is a trigger. 0 turns the veto off. 1e-2 is ours; the
    trigger on the Mu-GRPO paper's project page has a ratio below 1e-4."""
    scope: Literal["suffix", "trigger", "post_trigger", "from_trigger", "response"] = "suffix"
    """Tokens that a trigger removes."""


Veto = Annotated[Off | NegativeAdvantageVeto, Field(discriminator="name")]


class OffPolicySequenceMask(Part):
    """Responses with a negative advantage that the policy has moved far away from."""

    name: Literal["off_policy"] = "off_policy"
    delta: float = Field(0.5, ge=0)
    """Leave a response out if the mean of log(behavior / policy) over its tokens is above this."""


SequenceMask = Annotated[Off | OffPolicySequenceMask, Field(discriminator="name")]


class CorrectionOptions(Part):
    """The weight w = trainer's / engine's probability of a token under the behavior policy."""

    interval: RatioInterval = Field(
        (0.0, 2.0), description="Interval [low, high] of w, see correction.name."
    )
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or their product for the whole response."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("trainer_behavior_logprobs",)


class TruncatedCorrection(CorrectionOptions):
    """w, raised or lowered to the ends of the interval (truncated importance sampling)."""

    name: Literal["truncated"] = "truncated"


class MaskedCorrection(CorrectionOptions):
    """w if it is within the interval, else 0 (masked importance sampling)."""

    name: Literal["masked"] = "masked"


Correction = Annotated[Off | TruncatedCorrection | MaskedCorrection, Field(discriminator="name")]


class KLReference(Part):
    """coefficient x KL(policy || reference), estimated on the rollouts."""

    no_knobs = ("name", "coefficient", "period")
    name: Literal["kl"] = "kl"
    coefficient: float = Field(1e-3, gt=0)
    """Weight of the divergence. The estimate is multiplied by the importance ratio, as in TRL: on
    stale tokens it would be biased without it."""
    period: int = Field(0, ge=0)
    """Every N stages, the policy becomes the reference. 0 keeps the initial model."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("reference_logprobs",)


Reference = Annotated[Off | KLReference, Field(discriminator="name")]
