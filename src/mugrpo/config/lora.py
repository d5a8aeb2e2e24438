"""Options of LoRA."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mugrpo.config.options import FIXED, Options

_MOST = 1 << 16  # no layer is wider


class LoRAOptions(Options):
    """LoRA, by peft: train a small adapter instead of the model, which stays as it is. A layer
    computes W x + alpha / rank B (A x), and only A and B are trained."""

    rank: int = Field(0, ge=0, le=_MOST, json_schema_extra=FIXED)
    """Rows of A and columns of B. 0 trains the whole model."""
    alpha: int = Field(32, ge=1, le=_MOST, json_schema_extra=FIXED)
    """The adapter's output is multiplied by alpha / rank. With the same alpha, about the same
    learning rate is best for every rank."""
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        "all-linear", json_schema_extra=FIXED
    )
    """The layers that get an adapter: all linear ones but the output head, or those whose names end
    like this, such as ["q_proj", "v_proj"]."""
