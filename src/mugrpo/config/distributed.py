"""Options of updates that several processes make together."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mugrpo.config.options import HARMLESS, Options


class DistributedOptions(Options):
    """Processes that make the updates together, each with a part of the weights (FSDP2)."""

    processes: int = Field(1, ge=1, json_schema_extra=HARMLESS)
    """Processes on this machine, with a GPU each. `mugrpo train` starts them once. To use several
    machines, start `mugrpo optimize` with torchrun."""
    rest: Literal["sleep", "stay", "end"] = Field("sleep", json_schema_extra=HARMLESS)
    """What they do while engines generate. "sleep" moves weights and optimizer state from the GPUs
    to CPU memory. "stay" leaves them. "end" ends the processes, so each stage starts new ones; on
    Ray they always do."""
    cpu_offload: bool = Field(False, json_schema_extra=HARMLESS)
    """Keep weights, gradients and optimizer state in CPU memory. This is slower."""
    reshard_after_forward: bool = Field(True, json_schema_extra=HARMLESS)
    """Free a block's gathered weights after its forward pass. This saves memory, but gathers the
    weights twice."""
    replicas: int = Field(1, ge=1, json_schema_extra=HARMLESS)
    """Groups of ranks that each hold the whole model, split within the group. One for each machine
    keeps the gathering of weights within the machines. It must divide the number of ranks."""
