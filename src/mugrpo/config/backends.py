"""Where the processes of a run are started."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mugrpo.config.options import HARMLESS, NamedOptions


class BackendOptions(NamedOptions):
    """What starts engines and ranks that have processes of their own."""


class LocalBackend(BackendOptions):
    """This process, on this machine."""

    name: Literal["local"] = Field("local", json_schema_extra=HARMLESS)
    """Which backend."""


class RayBackend(BackendOptions):
    """Ray, on a cluster or on this machine: an actor for each of `engine.processes` (at least one),
    Ray Train for the updates.

    The run's directory, the model's and mugrpo itself are where they are on every machine.
    """

    name: Literal["ray"] = Field("ray", json_schema_extra=HARMLESS)
    """Which backend."""
    address: str | None = Field(None, json_schema_extra=HARMLESS)
    """Of the cluster, "auto" for one that this machine is part of; unset: that of RAY_ADDRESS, and
    where that is unset, too, Ray is started on this machine for the run."""
    gpus: bool | None = Field(None, json_schema_extra=HARMLESS)
    """Whether engines and processes of updates reserve GPUs; unset: where the cluster has some when
    the run is started."""
    engine_cpus: float = Field(1.0, ge=0, json_schema_extra=HARMLESS)
    """CPUs that an engine's actor reserves, besides the GPUs of the engine."""
    rank_cpus: float = Field(1.0, ge=0, json_schema_extra=HARMLESS)
    """CPUs that each process of an update reserves, besides a GPU."""
    restarts: int = Field(2, ge=0, json_schema_extra=HARMLESS)
    """How often the processes of a stage's updates are started again after one of them was lost;
    they go on from the newest checkpoint."""
