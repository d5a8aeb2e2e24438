"""Where the processes of a run are started."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mugrpo.config.options import HARMLESS, PRIVATE, NamedOptions
from mugrpo.config.private import PrivateText


class BackendOptions(NamedOptions):
    """What starts engines and ranks that have processes of their own."""


class LocalBackend(BackendOptions):
    """This process, on this machine."""

    name: Literal["local"] = Field("local", json_schema_extra=HARMLESS)


class RayBackend(BackendOptions):
    """Ray, on a cluster or on this machine: an actor for each of `engine.processes` (at least one)
    and Ray Train for the updates.

    The run's directory, the model and mugrpo itself must have the same paths on every machine.
    """

    name: Literal["ray"] = Field("ray", json_schema_extra=HARMLESS)
    address: PrivateText | None = Field(None, json_schema_extra=HARMLESS | PRIVATE)
    """Address of the cluster; "auto" is the cluster that this machine belongs to. The default
    is the environment variable RAY_ADDRESS. If that is unset too, Ray starts on this machine for
    the run."""
    gpus: bool | None = Field(None, json_schema_extra=HARMLESS)
    """Whether engines and update processes reserve GPUs. If unset, they do if the cluster has GPUs
    when the run starts."""
    engine_cpus: float = Field(1.0, ge=0, json_schema_extra=HARMLESS)
    """CPUs that an engine's actor reserves, besides the engine's GPUs."""
    rank_cpus: float = Field(1.0, ge=0, json_schema_extra=HARMLESS)
    """CPUs that each update process reserves, besides its GPU."""
    restarts: int = Field(2, ge=0, json_schema_extra=HARMLESS)
    """How often the update processes are restarted after one of them is lost, from the newest
    checkpoint: per run, or per stage if they end after each (distributed.rest)."""


Backend = Annotated[LocalBackend | RayBackend, Field(discriminator="name")]
