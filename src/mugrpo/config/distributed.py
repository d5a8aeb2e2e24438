"""Options of updates that several processes make together."""

from __future__ import annotations

from pydantic import Field

from mugrpo.config.options import HARMLESS, Options


class DistributedOptions(Options):
    """Several processes that make the updates together, each with a part of the weights (FSDP2)."""

    processes: int = Field(1, ge=1, json_schema_extra=HARMLESS)
    """Processes on this machine, a GPU each: `mugrpo train` starts them for the updates of a stage.
    Over several machines start `mugrpo optimize` with torchrun."""
    cpu_offload: bool = Field(False, json_schema_extra=HARMLESS)
    """Keep weights, gradients and optimizer state in the CPU's memory: slower."""
    reshard_after_forward: bool = Field(True, json_schema_extra=HARMLESS)
    """Give a block's gathered weights back after its forward pass: less memory, gathered twice."""
