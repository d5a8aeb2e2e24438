"""Which packages are installed, by their metadata alone: nothing is imported or run."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from mugrpo.tools.vllm_env import BUILDS, FOLDER


def unmet(extra: str = "") -> list[str]:
    """Return what mugrpo requires, with one of its extras, and is missing or too old."""
    from packaging.requirements import Requirement

    missing = []
    for requirement in map(Requirement, metadata.requires("mugrpo") or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            builds = metadata.distributions(name=requirement.name)
            if not any(requirement.specifier.contains(build.version) for build in builds):
                missing.append(f"{requirement.name}{requirement.specifier}")
    return missing


def extras() -> list[str]:
    """Return mugrpo's extras for users."""
    named = metadata.metadata("mugrpo").get_all("Provides-Extra") or ()
    return sorted({*named} - {"test", "bench"})


def vllm_build() -> tuple[str, Path] | None:
    """Return vLLM's version and folder: in this environment, or in that of `mugrpo vllm-env`.

    Its interpreter is not run, as a folder of this name in the working directory may be anybody's.
    """
    path = [*sys.path, *map(str, FOLDER.glob("lib/python3*/site-packages"))]
    for name in BUILDS:
        for build in metadata.distributions(name=name, path=path):
            return build.version, Path(str(build.locate_file("")))
    return None
