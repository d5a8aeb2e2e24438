"""The options of each engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mugrpo.config.options import HARMLESS, NamedOptions


class EngineOptions(NamedOptions):
    """What every engine is asked for."""

    canary_responses: int = Field(4, ge=0)
    """Responses whose logprobs are compared with the trainer's at each refresh; 0 turns it off."""
    canary_tolerance: float | None = Field(None, gt=0)
    """Largest absolute difference in logprob that the canary lets pass; where not set, 0.001 in
    fp32 and 0.1 in bf16."""
    canary_warning: float = Field(0.5, ge=0, le=1, json_schema_extra=HARMLESS)
    """Share of the tolerance from which the canary warns."""


class HFOptions(EngineOptions):
    """Hugging Face in process: the trainer's own model, batched sampling with a KV cache."""

    name: Literal["hf"] = "hf"
    """Which engine."""
    batch_size: int = Field(128, ge=1)
    """Sequences decoded together."""
