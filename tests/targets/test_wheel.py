"""The real wheel in an environment of its own, as a user installs it: `make test-wheel`."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.test_wheel import ROOT, packed, starter, use_the_commands

pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built := os.environ.get("WHEEL"):
        return ROOT / built
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("mugrpo-*.whl")
    return wheel


def test_the_wheel_holds_what_the_other_tests_of_it_run(wheel: Path):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    files = {name for name in names if name.startswith("mugrpo/")}
    assert files == {file.as_posix() for file in packed()}
    assert all(".dist-info/" in name for name in names - files)
    assert wheel.stat().st_size <= 5_000_000


def test_every_command_runs_where_only_the_wheel_is_installed(wheel: Path, tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    pip = [str(tmp_path / "env" / "bin" / "pip"), "install", "--quiet"]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), str(wheel)], check=True)
    empty = tmp_path / "empty"
    use_the_commands(starter(empty, tmp_path / "env" / "bin" / "mugrpo", PYTHONPATH=""), empty)
