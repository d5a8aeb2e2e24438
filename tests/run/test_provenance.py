"""The hash of the code covers what decides a run's numbers, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mugrpo.run.provenance import _git_revision, code_sha256

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


def test_a_file_that_is_gone_counts(copy: Path):
    before = code_sha256(copy)
    moved = (copy / "optimize/trainer.py").rename(copy / "optimize/lr.txt")
    code_sha256.cache_clear()
    assert code_sha256(copy) != before
    moved.rename(copy / "optimize/trainer.py")
    code_sha256.cache_clear()


def test_the_commit_of_a_checkout_is_only_that_of_files_that_it_tracks(tmp_path: Path):
    """mugrpo may lie in a virtual environment inside of somebody's own project."""
    own = ("-c", "user.name=Alice", "-c", "user.email=alice@example.org")

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), *own, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (folder := tmp_path / "venv" / "mugrpo").mkdir(parents=True)
    (folder / "__init__.py").touch()
    git("init")
    git("commit", "--allow-empty", "-m", "theirs")
    assert _git_revision(folder) is None
    git("add", "--force", "venv")
    git("commit", "-m", "tracked")
    assert _git_revision(folder) == git("rev-parse", "HEAD")
