"""Fixtures for tests that train tiny runs: `pytest_plugins = ["tests.run_fixtures"]`."""

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from mugrpo.cli import main
from mugrpo.disk.records import Response, Score, Status
from mugrpo.extensions.lab import bakeoff
from mugrpo.tasks.embedded import Chain
from tests.runs import MODEL, Command, Ended, State, finished, killed, state


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run with a checkpoint of every update. Tests only read it."""
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    finished(run_dir, "--checkpoint.every", 1)
    return run_dir


@pytest.fixture(scope="session")
def fifth_update(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its fifth update. Tests copy it."""
    run_dir = tmp_path_factory.mktemp("killed") / "run"
    killed(run_dir, "gradient", 5, "--checkpoint.every", 1)
    assert state(run_dir) == State((3, 3), (3, 3), (1, 2, 3, 4), "update 4")
    return run_dir


@pytest.fixture(scope="session")
def scored_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed before its first update. Tests copy it."""
    run_dir = tmp_path_factory.mktemp("scored") / "run"
    killed(run_dir, "gradient", 1)
    assert state(run_dir).scores == (3, 0)
    return run_dir


@pytest.fixture
def run_dir(fifth_update: Path, tmp_path: Path) -> Path:
    """A copy of a run that was killed in its fifth update, with the last two still to be made."""
    return Path(shutil.copytree(fifth_update, tmp_path / "run"))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command in this process."""

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Ended(status, *capsys.readouterr())

    return run


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the report of a bakeoff in this process. Drawing it takes longer than the rest."""
    monkeypatch.setattr(bakeoff, "write_report", lambda _, out: out)


@pytest.fixture
def stricter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install another judge, which gives a wrong answer -1 instead of 0."""
    before = Chain.score

    def score(task: Chain, answers: Iterable[Response]) -> Iterator[Score]:
        for given in before(task, answers):
            yield Score(Status.WRONG, -1.0) if given.status is Status.WRONG else given

    monkeypatch.setattr(Chain, "score", score)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the embedded model's directory."""
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MB with nothing else on it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules of somebody else, which create the file "ran"."""
    folder = tmp_path / "theirs"
    for name in ("mugrpo/__init__.py", "pip.py", "torch.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(folder)
    return folder
