"""What every objective's options share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mugrpo.config.options import NamedOptions


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
DualClip = Annotated[
    float | None,
    Field(
        gt=1,
        description="Bound c on the weight of tokens with a negative advantage; "
        "off where it is not set.",
    ),
]
Reduction = Annotated[
    Literal["token_mean", "sequence_mean", "constant"],
    Field(
        description="Divide the summed loss by the update's response tokens; or each response's "
        "by its length and the sum by the responses; or by responses x max_new_tokens."
    ),
]


class ObjectiveOptions(NamedOptions):
    """Options that the trainer itself reads; subclasses add the objective's own knobs."""

    reduction: Reduction = "token_mean"
    advantage_std: bool = True
    """Divide advantages by the group's standard deviation (unbiased, plus advantage_eps)."""
    advantage_eps: float = Field(1e-4, gt=0)
    """Added to the group's standard deviation."""

    @property
    def knobs(self) -> dict[str, object]:
        """The keyword arguments of the objective's function."""
        return self.model_dump(exclude={"name", *ObjectiveOptions.model_fields})
