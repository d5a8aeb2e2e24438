"""What the wheel says of itself, and how much an installation takes."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.runs import ROOT

# torch's build for CPUs takes 754 MB, that for CUDA 1.2 GB and 4.1 GB of packages of its own.
APART = re.compile(r"torch|triton|nvidia-.*|cuda-.*")


@pytest.fixture(scope="module")
def about(tmp_path_factory: pytest.TempPathFactory) -> Message:
    """The metadata of the wheel WHEEL, or of one that is built."""
    wheel = os.environ.get("WHEEL")
    if not wheel:
        folder = tmp_path_factory.mktemp("wheel")
        words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
        subprocess.run([sys.executable, *words], check=True)
        (wheel,) = map(str, folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_an_installation_without_torch_takes_less_than_800_mb(about: Message):
    """So with torch's build for CPUs it takes less than 1.6 GB."""
    waiting, sizes = ["mugrpo"], dict[str, int]()
    required = about.get_all("Requires-Dist", [])
    while waiting:
        name = waiting.pop()
        if name in sizes or APART.fullmatch(name):
            continue
        if name == "mugrpo":
            sizes[name] = sum(f.stat().st_size for f in (ROOT / "src").rglob("*") if f.is_file())
        else:
            try:
                found = distribution(name)
            except PackageNotFoundError:  # it is for another system
                continue
            paths = (Path(str(found.locate_file(file))) for file in found.files or ())
            sizes[name] = sum(p.stat().st_size for p in paths if p.is_file())
            required = found.requires or []
        needed = map(Requirement, required)
        waiting += [n.name for n in needed if not n.marker or n.marker.evaluate({"extra": ""})]
    assert {"transformers", "pyarrow", "altair"} <= sizes.keys()
    assert "scipy" not in sizes
    assert sum(sizes.values()) < 800e6, sorted(sizes.items(), key=lambda s: -s[1])[:9]


def test_links_are_absolute_where_a_package_index_shows_them(about: Message):
    text = str(about.get_payload())
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 30 and all(link.startswith("https://") for link in links)
    named = dict(url.split(", ") for url in about.get_all("Project-URL", []))
    home = named["Source"]
    assert {"Documentation", "Changelog"} <= named.keys()
    for link in links:
        path = link.partition(f"{home}/blob/main/")[2].partition("#")[0]
        assert not path or (ROOT / path).exists(), link


def test_the_image_installs_extras_that_exist():
    named = re.findall(r"'/src\[([\w,]+)\]'", (ROOT / "Dockerfile").read_text())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert named and set(named[0].split(",")) <= extras.keys()
