"""The options of each engine."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from mugrpo.config.options import HARMLESS, NamedOptions


class EngineOptions(NamedOptions):
    """What every engine is asked for."""

    memory_option: ClassVar[str]  # the option that decides how much memory generation takes

    canary_responses: int = Field(4, ge=0)
    """Responses whose logprobs are compared with the trainer's at each refresh; 0 turns it off."""
    canary_tolerance: float | None = Field(None, gt=0)
    """Largest absolute difference in logprob that the canary lets pass; where not set, 0.001 in
    fp32 and 0.1 in bf16."""
    canary_warning: float = Field(0.5, ge=0, le=1, json_schema_extra=HARMLESS)
    """Share of the tolerance from which the canary warns."""
    restarts: int = Field(2, ge=0, json_schema_extra=HARMLESS)
    """How often a process of the engine that died or hangs is started again, a refresh."""
    silence: float = Field(600.0, gt=0, json_schema_extra=HARMLESS)
    """Seconds without a word from a process of the engine after which it counts as hanging."""

    @property
    def way_out_of_memory(self) -> str:
        """What to do where generation runs out of memory."""
        now = getattr(self, self.memory_option)
        return f"lower --engine.{self.memory_option} (now {now}, with --force)"


class OwnEngineOptions(EngineOptions):
    """What both engines of our own are asked for."""

    processes: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Processes of their own, each with a copy of the model, that share a stage's shards; 0: in the
    trainer's process, with its model."""
    threads: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """CPU threads of each such process; 0: the trainer's, divided among them."""


class ContinuousOptions(OwnEngineOptions):
    """Continuous batching of a Hugging Face model."""

    memory_option = "slots"
    name: Literal["continuous"] = "continuous"
    """Which engine."""
    slots: int = Field(128, ge=1)
    """Sequences decoded together; one that ends makes room for the next at once."""
    prefill_tokens: int = Field(2048, ge=1)
    """Padded prompt tokens that go through the model together."""


class HFOptions(OwnEngineOptions):
    """A Hugging Face model in static batches: plain and slower."""

    memory_option = "batch_size"
    name: Literal["hf"] = "hf"
    """Which engine."""
    batch_size: int = Field(128, ge=1)
    """Sequences decoded together."""
