"""An environment with only what an install command brings, made in a second and without a network.

Its packages are links to those of the tests' environment, which has more than users have.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def environment(folder: Path, *extras: str) -> Path:
    """Make an environment of what `pip install mugrpo[extras]` brings, and return its interpreter.

    mugrpo itself is left out, except for its metadata. Raises PackageNotFoundError if the tests'
    environment lacks a package.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for installed in required("mugrpo", extras):
        for entry in entries(installed):
            if not (packages / entry).exists():
                (packages / entry).symlink_to(str(installed.locate_file(entry)))
    return folder / "bin" / "python"


def required(name: str, extras: Iterable[str] = ()) -> list[metadata.Distribution]:
    """Return a package and all that it requires with these extras."""
    found: dict[str, metadata.Distribution] = {}
    asked: set[tuple[str, str]] = set()
    todo = [(name, extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        name = canonicalize_name(name)
        if (name, extra) in asked:
            continue
        asked.add((name, extra))
        found[name] = metadata.distribution(name)
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                todo += [(requirement.name, wanted) for wanted in ("", *requirement.extras)]
    return list(found.values())


def entries(installed: metadata.Distribution) -> Iterator[str]:
    """Yield what a package has in site-packages; nothing that leads to a clone."""
    for top in sorted({file.parts[0] for file in installed.files or ()}):
        if top not in ("..", "__pycache__") and not top.endswith(".pth"):
            yield top
