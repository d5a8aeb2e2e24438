"""Options of updates that several processes make together."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from mugrpo.config.options import HARMLESS, PROCESSES, Options


class DistributedOptions(Options):
    """Processes that make the updates together, each with a part of the weights (FSDP2)."""

    processes: int = Field(1, ge=1, le=PROCESSES, json_schema_extra=HARMLESS)
    """Processes on each machine (on Ray: in all), with a GPU each. `mugrpo train` starts them
    once."""
    machines: int = Field(1, ge=1, le=PROCESSES, json_schema_extra=HARMLESS)
    """Machines that make the updates together. `mugrpo train` starts the processes of its own; on
    every other one, start them with torchrun and `mugrpo optimize RUN --follow`."""
    address: str | None = Field(None, json_schema_extra=HARMLESS)
    """HOST:PORT of the first machine, where torchrun lets several machines meet."""
    rest: Literal["sleep", "stay", "end"] = Field("sleep", json_schema_extra=HARMLESS)
    """What they do while engines generate on their GPUs. "sleep" moves weights and optimizer state
    to CPU memory. "stay" leaves them, as on Ray. "end" ends the processes, so each stage starts
    new ones. On Ray they also end if it has no room for them beside the engines. A single process
    sleeps with "end", too."""
    cpu_offload: bool = Field(False, json_schema_extra=HARMLESS)
    """Keep weights, gradients and optimizer state in CPU memory. This is slower."""
    reshard_after_forward: bool = Field(True, json_schema_extra=HARMLESS)
    """Free a block's gathered weights after its forward pass. This saves memory, but gathers the
    weights twice."""
    replicas: int = Field(1, ge=1, le=PROCESSES, json_schema_extra=HARMLESS)
    """Groups of ranks that each hold the whole model, split within the group. One for each machine
    keeps the gathering of weights within the machines. It must divide the number of ranks."""

    @model_validator(mode="after")
    def _machines_meet(self) -> Self:
        if self.machines > 1 and not self.address:
            raise ValueError("several machines need an address, HOST:PORT of the first one")
        if self.machines > 1 and self.rest == "end":
            raise ValueError(
                "rest = 'end' needs machines = 1: nobody starts processes on other machines again"
            )
        return self

    @property
    def ranks(self) -> int:
        """Return the number of processes on all machines."""
        return self.processes * self.machines
