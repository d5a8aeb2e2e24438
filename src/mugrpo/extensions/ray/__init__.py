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
    and Ray Train for the updates. Each reserves one CPU and, if the cluster has GPUs when the run
    starts, its GPUs.

    The run's directory, the model and mugrpo itself must have the same paths on every machine.
    """

    name: Literal["ray"] = Field("ray", json_schema_extra=HARMLESS)
    factory: ClassVar[str] = "mugrpo.extensions.ray.cluster:RayCluster"
    address: str | None = Field(None, json_schema_extra=HARMLESS)
    """Address of the cluster; "auto" is the cluster that this machine belongs to. The default
    is the environment variable RAY_ADDRESS. If that is unset too, Ray starts on this machine for
    the run."""

    @property
    def addresses(self) -> Mapping[str, str]:
        return {"address": self.address} if self.address else {}


extension = Extension(backends=(RayBackend,))
