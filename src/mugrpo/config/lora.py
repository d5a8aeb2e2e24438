"""Options of LoRA."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

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
    dropout: float = 0.0
    """Only 0: the policy that is trained must be the one that was sampled from."""

    quantization: Literal["none", "nf4"] = Field("none", json_schema_extra=FIXED)
    """Keep the model's linear layers in 4 bits under the adapter, by bitsandbytes (QLoRA). Needs a
    GPU."""

    @field_validator("dropout")
    @classmethod
    def _no_dropout(cls, dropout: float) -> float:
        if dropout:
            raise ValueError(
                "importance ratios compare the policy with the one that was sampled from, and "
                "dropout would change it in between; leave it at 0"
            )
        return dropout

    @model_validator(mode="after")
    def _quantized_weights_are_not_trained(self) -> Self:
        if self.quantized and not self.rank:
            raise ValueError(
                f"quantization = {self.quantization!r} needs an adapter, as weights in 4 bits "
                "cannot be trained; set rank = 16"
            )
        return self

    @property
    def quantized(self) -> bool:
        """Return whether the model under the adapter has weights in 4 bits."""
        return self.quantization != "none"
