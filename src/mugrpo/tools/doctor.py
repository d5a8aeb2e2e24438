"""What this machine and environment can run, and what will not work and why: `mugrpo doctor`."""

import os
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.metadata import version
from pathlib import Path
from platform import python_version

from mugrpo.config.base import imported, installed
from mugrpo.config.cores import cores, host_memory
from mugrpo.config.engines import BUILDS
from mugrpo.disk.errors import UsageError
from mugrpo.tools.vllm_env import FOLDER

_DEMO_NEEDS = ("packages", "disk")  # if these have a remedy, `mugrpo demo` cannot run
_DEMO_BYTES = 50_000_000  # `mugrpo check` says that it takes 46 MB at most
Finding = tuple[str, str]  # what is so, and the remedy if something will not work, or ""


def examine(say: Callable[[str], None]) -> None:
    """Say what works, what does not, and what to do next.

    Raises UsageError, at last, if `mugrpo demo` does not work.
    """
    able = True
    extensions = (one.checks for one in installed().values())
    added = {subject: imported(place) for checks in extensions for subject, place in checks.items()}
    for subject, check in {**_CHECKS, **added}.items():
        try:
            text, remedy = check()
        except Exception as error:  # it hides no other line
            text, remedy = f"{type(error).__name__}: {error}", "fix this and retry"
        say(f"{subject:<11}{text}{remedy and f'; {remedy}'}")
        able &= not (remedy and subject in _DEMO_NEEDS)
    if not able:
        raise UsageError("`mugrpo demo` cannot run here; the lines above say why")
    say(f"{'next':<11}{_next()}")


def _next() -> str:
    """Return the command to go on with in this folder."""
    if configs := {*Path().glob("*.toml")} - {Path("pyproject.toml"), Path("slurm.toml")}:
        return f"mugrpo check {max(configs, key=lambda file: file.stat().st_mtime)}"
    if Path("runs/demo").exists():
        return "mugrpo init --from problems.jsonl, with a file of your own problems"
    return "mugrpo demo"


def _packages() -> Finding:
    if missing := unmet():
        return "some are missing or too old", f"pip install {' '.join(map(repr, missing))}"
    import torch

    versions = python_version(), torch.__version__, version("transformers")
    return "Python {}, torch {}, transformers {}".format(*versions), ""


def _gpus() -> Finding:
    import torch

    from mugrpo.model.hardware import unusable_gpu

    if found := unusable_gpu():
        return found
    if count := torch.cuda.device_count():
        gpus = map(torch.cuda.get_device_properties, range(count))
        return ", ".join(f"{gpu.name}, {gpu.total_memory / 2**30:.1f} GiB" for gpu in gpus), ""
    return "none", "use small models, on the CPU"


def _disk() -> Finding:
    runs = Path("runs").absolute()
    place = next(place for place in (runs, *runs.parents) if os.path.lexists(place))
    free = shutil.disk_usage(place).free
    text = f"{free / 2**30:.1f} GiB free for {runs}"
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        return f"{text}, which cannot be written to", "work in another folder"
    return text, f"make room: the demo takes {_DEMO_BYTES:,} bytes" * (free < _DEMO_BYTES)


def _extras() -> Finding:
    missing = [name for name in extras() if unmet(name)]
    here = ", ".join(name for name in extras() if name not in missing) or "none"
    return f"{here}; available: {', '.join(missing)}" if missing else here, ""


def _vllm() -> Finding:
    from mugrpo.engines.vllm import OLDEST, new_enough

    if build := vllm_build():
        remedy = f"it must be at least {OLDEST[0]}.{OLDEST[1]}: `mugrpo vllm-env` makes another"
        return f"{build[0]} in {build[1]}", "" if new_enough(build[0]) else remedy
    return "none", "`mugrpo vllm-env` adds it, for big models"


_CHECKS: dict[str, Callable[[], Finding]] = {
    "packages": _packages,
    "GPUs": _gpus,
    "CPU": lambda: (f"{len(cores())} cores, {host_memory() / 2**30:.1f} GiB of memory", ""),
    "disk": _disk,
    "extras": _extras,
    "extensions": lambda: (", ".join(installed()) or "none", ""),
    "vLLM": _vllm,
}


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
    return sorted({*named} - {"test", "bench", "site"})


def vllm_build() -> tuple[str, Path] | None:
    """Return vLLM's version and folder: in this environment, or in that of `mugrpo vllm-env`.

    Its interpreter is not run, as a folder of this name in the working directory may be anybody's.
    """
    path = [*sys.path, *map(str, FOLDER.glob("lib/python3*/site-packages"))]
    for name in BUILDS:
        for build in metadata.distributions(name=name, path=path):
            return build.version, Path(str(build.locate_file("")))
    return None
