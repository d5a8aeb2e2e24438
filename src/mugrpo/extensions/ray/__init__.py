"""Engines and ranks on a Ray cluster."""

from typing import ClassVar, Literal

from pydantic import Field

from mugrpo.config.base import HARMLESS, BackendOptions, Extension


class RayBackend(BackendOptions):
    """Ray, on a cluster or on this machine: an actor for each of `engine.processes` (at least one)
    and Ray Train for the updates. Each reserves one CPU and, if the cluster has GPUs when the run
    starts, its GPUs.

    Its address is that in RAY_ADDRESS, "auto" for the cluster of this machine. Without one, Ray
    starts on this machine for the run. The run's directory, the model and mugrpo itself must have
    the same paths on every machine.
    """

    name: Literal["ray"] = Field("ray", json_schema_extra=HARMLESS)
    factory: ClassVar[str] = "mugrpo.extensions.ray.cluster:RayCluster"


extension = Extension(backends=(RayBackend,))
