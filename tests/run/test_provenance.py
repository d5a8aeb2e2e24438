"""The hash of the code covers what decides a run's numbers, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mugrpo.run.provenance import code_sha256

SOURCE = Path(__file__).parents[2] / "src" / "mugrpo"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "mugrpo"
    return Path(shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("*.safetensors")))


def changed(copy: Path, file: str, old: str, new: str) -> bool:
    """Return whether the hash changes if `old` becomes `new` in `file`."""
    path = copy / file
    text = path.read_text()
    assert text.count(old) >= 1, file
    path.write_text(text.replace(old, new, 1))
    code_sha256.cache_clear()
    other = code_sha256(copy)
    path.write_text(text)
    code_sha256.cache_clear()
    return other != code_sha256(copy)


@pytest.mark.parametrize(
    ("file", "decides"),
    [("optimize/ratios.py", True), ("extensions/code/cases.py", True), ("report/page.py", False)],
)
def test_code_that_decides_numbers_counts(copy: Path, file: str, decides: bool):
    assert changed(copy, file, "import", "import  ") == decides
