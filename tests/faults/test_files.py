"""Files of a run that are changed, swapped, cut, not readable, or folders."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mugrpo.disk.publishing import seal_folder
from tests.cases import some
from tests.faults.harm import flip_bit, stopped, truncate
from tests.runs import Command, assert_same, shards

pytestmark = pytest.mark.long

pytest_plugins = ["tests.run_fixtures"]

Harm = Callable[[Path], object]


@pytest.fixture
def whole(reference: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(reference, tmp_path / "run"))


def repaired(command: Command, run_dir: Path, name: str) -> str:
    """Check that `repair` names the file and nothing else, and return what it says."""
    ended = command("repair", run_dir)
    assert ended.status == 0 and f"{run_dir / name} " in ended.out
    assert "1 damaged" in ended.out, ended
    return ended.out


@pytest.mark.parametrize("sealed", [False, True])
def test_weights_of_another_checkpoint_are_refused(
    run_dir: Path, command: Command, reference: Path, sealed: bool
):
    """With new seals they fit these, but not the run's journal."""
    third, fourth = (run_dir / "checkpoints" / f"update-00000{n}" for n in (3, 4))
    shutil.copy(third / "model.safetensors", fourth / "model.safetensors")
    if sealed:
        (fourth / "sha256.json").unlink()
        seal_folder(fourth)
    sentence = "sha256.json is not what the run wrote" if sealed else "does not match its checksum"
    stopped(command("train", run_dir), str(fourth), sentence)
    assert "1 damaged" in command("repair", run_dir).out
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.parametrize("harm", [truncate, lambda path: path.write_bytes(b"")])
def test_a_truncated_final_model_is_found_by_train(
    whole: Path, command: Command, reference: Path, harm: Harm
):
    harm(whole / "checkpoints/update-000006/model.safetensors")
    stopped(command("train", whole), "update-000006", "model.safetensors", "`mugrpo repair")
    assert "1 damaged" in command("repair", whole).out
    assert command("train", whole).status == 0
    assert_same(whole, reference)


# ---- evaluations and samples ----


@pytest.mark.parametrize("kind", ["rollouts", "scores"])
@pytest.mark.parametrize("harm", some(1, [flip_bit, truncate, Path.unlink]))
def test_a_damaged_evaluation_is_set_aside_and_evaluate_makes_it_again(
    whole: Path, command: Command, reference: Path, kind: str, harm: Harm
):
    name = "evaluations/update-000003"
    harm(whole / name / kind / "shard-00000.parquet")
    assert "`mugrpo evaluate` makes it again" in repaired(command, whole, name)
    assert command("evaluate", whole, "--update", 3).status == 0
    shutil.rmtree(whole / f"{name}.bad")
    assert shards(whole) == shards(reference)


# ---- folders, and files of somebody else ----


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "journal.jsonl",
        "lock",
        "stages/001/rollouts/shard-00001.parquet",
        "checkpoints/update-000004",
    ],
)
@pytest.mark.parametrize("word", some(2, ["train", "repair", "report"]))
def test_a_file_without_permission_is_one_sentence(
    run_dir: Path, command: Command, name: str, word: str
):
    path = run_dir / name
    mode = path.stat().st_mode
    with as_others():
        path.chmod(0)
        ended = command(word, run_dir)
        path.chmod(mode)
    assert ended.status in ((0, 2, 3) if word == "report" else (2, 3)), ended
    assert ended.err.count("mugrpo: ") == ended.err.count("\n") == (ended.status > 0)
    assert ended.status == 0 or (str(run_dir) if name == "lock" else name) in ended.err
    assert command("train", run_dir).status == 0  # nothing was taken for damage


@contextmanager
def as_others() -> Iterator[None]:
    """Take from root, if that runs the tests, the right to read what it has no permission for."""
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    fewer = (ctypes.c_uint32 * 6)(before[0] & ~0b110, *before[1:])
    assert libc.capset(header, fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
