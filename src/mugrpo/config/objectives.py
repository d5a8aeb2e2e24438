"""What an update maximizes: advantages and objectives (config/parts.py has what goes with them).

Each part is chosen by its name and has the options that mean something there. `mugrpo objectives`
lists them with their papers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from mugrpo.config.options import NamedOptions, PathOrName


def _ordered(interval: tuple[float, float]) -> tuple[float, float]:
    low, high = interval
    if not 0 <= low < high:
        raise ValueError(f"[{low}, {high}] is no ratio interval: 0 <= low < high is needed")
    return interval


RatioInterval = Annotated[
    tuple[float, float],
    AfterValidator(_ordered),
    Field(description="Interval [low, high] that the importance ratio is clipped to."),
]
Reduction = Literal["token_mean", "sequence_mean", "constant"]
Level = Literal["token", "sequence"]


class Part(NamedOptions):
    """A part of the objective: its options beside `name` are the arguments of its function."""

    @property
    def knobs(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name", "proximal_period"})


# ---- advantages ----


class AdvantageOptions(Part):
    """How rewards become advantages."""

    zero_variance_mask: bool = True
    """Responses of groups whose rewards are all equal give no gradient, of a KL term neither."""

    @property
    def knobs(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name", "zero_variance_mask"})


class GroupAdvantage(AdvantageOptions):
    """(R - mean) / standard deviation over the group (GRPO)."""

    name: Literal["group"] = "group"
    """Which advantage."""
    std: Literal["unbiased", "population", "none"] = "unbiased"
    """Which standard deviation the advantages are divided by; none as in Dr. GRPO."""
    eps: float = Field(1e-4, gt=0)
    """Added to the standard deviation."""
    eps_inside: bool = False
    """Add eps to the variance, under the root, as off-policy GRPO has it."""


class ShiftedAdvantage(AdvantageOptions):
    """R - baseline with the same baseline for every problem (TOPR)."""

    name: Literal["shifted"] = "shifted"
    """Which advantage."""
    zero_variance_mask: bool = False
    """Responses of groups whose rewards are all equal give no gradient, of a KL term neither."""
    baseline: float = 0.5
    """What is taken from every reward."""


class AsymREAdvantage(AdvantageOptions):
    """R - (mean + delta) over the group (AsymRE)."""

    name: Literal["asymre"] = "asymre"
    """Which advantage."""
    zero_variance_mask: bool = False
    """Responses of groups whose rewards are all equal give no gradient, of a KL term neither."""
    delta: float = -0.1
    """Added to the group's mean; below 0 it favors what was right over what was wrong."""


# ---- objectives ----


class ObjectiveOptions(Part):
    """What is made of ratios and advantages."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Logprobs that are stored beside the rollouts for this objective."""
        return ()


class _Proximal(ObjectiveOptions):
    proximal_period: int = Field(1, ge=1)
    """Updates for which the proximal policy stays the same, where it is used."""


class GRPOOptions(_Proximal):
    """The PPO min form, -min(r A, clip(r) A)."""

    name: Literal["grpo"] = "grpo"
    """Which objective."""
    ratio_clip: RatioInterval = (0.8, 1.2)
    dual_clip: float | None = Field(None, gt=1)
    """Bound c on the weight of tokens with a negative advantage; off where it is not set."""
    level: Level = "token"
    """One ratio for each token, or the geometric mean over the response (GSPO)."""
    clip_center: Literal["behavior", "proximal"] = "behavior"
    """Clip around 1, or around the proximal policy's ratio (off-policy GRPO)."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("proximal_logprobs",) if self.clip_center == "proximal" else ()


class KLSurrogateOptions(ObjectiveOptions):
    """The unclipped surrogate with a penalty on KL(policy || behavior policy)."""

    name: Literal["kl_surrogate"] = "kl_surrogate"
    """Which objective."""
    penalty: float = Field(0.1, ge=0)
    """Weight of the KL divergence."""


class CISPOOptions(ObjectiveOptions):
    """The clipped ratio as a constant weight: every token keeps its gradient."""

    name: Literal["cispo"] = "cispo"
    """Which objective."""
    ratio_clip: RatioInterval = (0.0, 5.0)


class M2POOptions(ObjectiveOptions):
    """The second moment of the log ratio is kept under a bound by masking, without a clip."""

    name: Literal["m2po"] = "m2po"
    """Which objective."""
    second_moment_limit: float = Field(0.04, gt=0)
    """Bound on the mean squared log ratio of the tokens that move away from the behavior policy."""


class M2POReleasedOptions(ObjectiveOptions):
    """M2PO as its code was released: a clip whose width follows from the second moment."""

    name: Literal["m2po_released"] = "m2po_released"
    """Which objective."""
    second_moment_limit: float = Field(0.04, gt=0)
    """Bound on the mean squared log ratio, capped, of the tokens that move away."""


class DecoupledPPOOptions(_Proximal):
    """The PPO min form around a proximal policy, weighted back to the behavior policy."""

    name: Literal["decoupled_ppo"] = "decoupled_ppo"
    """Which objective."""
    ratio_clip: RatioInterval = (0.8, 1.2)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("proximal_logprobs",)


class TOPROptions(ObjectiveOptions):
    """No ratio on positive advantages; the response's ratio, at most 1, on negative ones."""

    name: Literal["topr"] = "topr"
    """Which objective."""


class MinPROOptions(ObjectiveOptions):
    """The PPO min form on the token's ratio times the smallest ratio before it."""

    name: Literal["minpro"] = "minpro"
    """Which objective."""
    ratio_clip: RatioInterval = (0.8, 1.2)


class PNPOOptions(ObjectiveOptions):
    """The PPO min form on the geometric mean of the ratios up to each token."""

    name: Literal["pnpo"] = "pnpo"
    """Which objective."""
    ratio_clip: RatioInterval = (0.8, 1.2)
    stop_gradient: bool = False
    """Take that mean as a constant weight of the token's own log-probability."""


class ReinforceOptions(ObjectiveOptions):
    """-A log pi, without a ratio (AsymRE's with its advantage)."""

    name: Literal["reinforce"] = "reinforce"
    """Which objective."""


class FileOptions(ObjectiveOptions):
    """An objective of your own, from a Python file."""

    name: Literal["file"] = "file"
    """Which objective."""
    path: PathOrName
    """The file; see docs/objectives.md."""
    options: dict[str, float] = Field(default_factory=dict)
    """Handed to its loss as keyword arguments."""

    @property
    def knobs(self) -> dict[str, Any]:
        return dict(self.options)
