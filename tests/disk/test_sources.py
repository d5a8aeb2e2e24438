"""What runs is the source that a person can read, whatever is compiled beside it."""

from __future__ import annotations

import importlib
import importlib.util
import py_compile
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mugrpo.config.base import WorkerOptions
from mugrpo.config.rewards import FunctionOptions
from mugrpo.disk import sources
from mugrpo.disk.records import Answer, FinishReason, Problem
from mugrpo.rewards.grading import Grader
from tests.optimize.test_file_objective import loss_of

JUDGE = "def judge(completions, **_):\n    return [{}]\n"
LOSS = "def loss(*tensors):\n    return 1.0, {}\n"
OTHER = "raise SystemExit('compiled from something else')\n"

Forge = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what a test imports, and how, from the tests after it."""
    monkeypatch.setattr(sources, "_folders", set())
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    yield
    sys.path_importer_cache.clear()
    for name in ("part", "part.inner"):
        sys.modules.pop(name, None)


@pytest.fixture
def forged(tmp_path: Path) -> Forge:
    """Return a function that writes a module, and a cache of another one that Python believes."""

    def write(name: str, source: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
        _compiled(tmp_path, Path(importlib.util.cache_from_source(str(file))))
        return file

    return write


def _compiled(folder: Path, place: Path) -> None:
    (folder / "other.txt").write_text(OTHER)
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(folder / "other.txt"), str(place), invalidation_mode=unchecked)


def test_python_itself_believes_the_forged_cache(forged: Forge, tmp_path: Path):
    forged("mine.py", JUDGE.format(1.0))
    ended = subprocess.run([sys.executable, "-c", "import mine"], cwd=tmp_path, capture_output=True)
    assert ended.stderr == b"compiled from something else\n"


def test_a_file_and_what_it_imports_run_as_they_are_written(
    forged: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    forged("part/__init__.py", "from . import inner\n")
    forged("part/inner.py", "VALUE = 1\n")
    file = forged("mine.py", "import part\nVALUE = part.inner.VALUE + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sources.load_file("mine_as_loaded", file).VALUE == 2
    file.write_text("VALUE = 3\n")
    assert sources.load_file("mine_as_loaded", file).VALUE == 3


def test_a_compiled_module_without_a_source_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _compiled(tmp_path, tmp_path / "hidden.pyc")
    monkeypatch.syspath_prepend(str(tmp_path))
    sources.import_from_source(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="hidden"):
        importlib.import_module("hidden")


def test_an_environment_in_the_folder_keeps_its_compiled_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is on the path itself. To compile all of PyTorch would take minutes."""
    installed = tmp_path / "venv"
    installed.mkdir()
    _compiled(tmp_path, installed / "hidden.pyc")
    for folder in (installed, tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    sources.import_from_source(tmp_path)
    with pytest.raises(SystemExit, match="compiled"):
        importlib.import_module("hidden")


def test_rewards_run_as_they_are_written(
    forged: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A file, one beside it that it imports, and a module in the working directory."""
    forged("beside.py", "VALUE = 2.0\n")
    forged("mine.py", "from beside import VALUE\n" + JUDGE.format("VALUE"))
    forged("here.py", JUDGE.format(3.0).replace("judge", "also"))
    monkeypatch.chdir(tmp_path)
    rewards = tuple(FunctionOptions(function=name) for name in ("mine.py:judge", "here:also"))
    answer = Answer(Problem("p1", "1+1=", "2", {}), "2", [5, 0], FinishReason.STOP)
    with Grader(rewards, WorkerOptions(count=1)) as grader:
        assert [score.reward for score in grader.scores([answer])] == [5.0]


def test_an_objective_runs_as_it_is_written(forged: Forge):
    assert loss_of(forged("mine.py", LOSS)).objective.loss() == (1.0, {})
