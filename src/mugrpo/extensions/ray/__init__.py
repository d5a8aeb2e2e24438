"""Engines and ranks on a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from mugrpo.config.base import BackendOptions
from mugrpo.config.extensions import Extension
from mugrpo.config.options import HARMLESS


class RayBackend(BackendOptions):
    """Ray, on a cluster or on this machine: an actor for each of `engine.processes` (at least one)
    and Ray Train for the updates.

    The run's directory, the model and mugrpo itself must have the same paths on every machine.
    """

    name: Literal["ray"] = Field("ray", json_schema_extra=HARMLESS)
    factory: ClassVar[str] = "mugrpo.extensions.ray.backend:RayCluster"
    address: str | None = Field(None, json_schema_extra=HARMLESS)
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
    checkpoint: per run, or per stage if they end after each."""

    @property
    def addresses(self) -> Mapping[str, str]:
        return {"address": self.address} if self.address else {}


extension = Extension(backends=(RayBackend,))
