"""The folder in memory of a run, with a folder of the test in the place of /dev/shm."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from mugrpo.disk.run_dir import RunDir, _free_memory, memory_folder, with_room
from tests.cases import table

SIZE = 1 << 30


@pytest.fixture(autouse=True)
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file system in memory with 2 GiB free, on a machine with 8 GiB."""
    (folder := tmp_path / "shm").mkdir()
    monkeypatch.setattr("mugrpo.disk.run_dir._SHM", folder)
    free = SimpleNamespace(free=2 * SIZE)
    monkeypatch.setattr("mugrpo.disk.run_dir.shutil", SimpleNamespace(disk_usage=lambda _: free))
    monkeypatch.setattr("mugrpo.disk.run_dir._free_memory", lambda: 8 * SIZE)
    return folder


@table(
    ("size", "free", "memory", "room"),
    [
        (SIZE, 2 * SIZE, 8 * SIZE, True),
        (SIZE, SIZE - 1, 8 * SIZE, False),
        (SIZE, 2 * SIZE, 8 * SIZE - 1, False),  # the weights and moments come there, too
        ((1 << 28) - 1, 2 * SIZE, 8 * SIZE, False),  # a disk is as good
    ],
)
def test_there_is_room_for_a_model_where_the_file_system_and_the_memory_have_it(
    tmp_path: Path, monkeypatch, size: int, free: int, memory: int, room: bool
):
    found = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr("mugrpo.disk.run_dir.shutil", found)
    monkeypatch.setattr("mugrpo.disk.run_dir._free_memory", lambda: memory)
    folder = with_room(tmp_path, size)
    assert (folder is not None) == room == memory_folder(tmp_path).exists()
    assert folder is None or folder.stat().st_mode & 0o777 == 0o700


def test_there_is_none_on_a_system_without_it_or_where_another_has_made_the_folder(
    tmp_path: Path, shm: Path, monkeypatch
):
    (tmp_path / "theirs").mkdir()
    memory_folder(tmp_path).symlink_to(tmp_path / "theirs")
    assert with_room(tmp_path, SIZE) is None
    assert with_room(tmp_path / "run", SIZE)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    memory_folder(tmp_path / "run").mkdir()
    assert with_room(tmp_path / "run", SIZE) is None
    shm.rename(tmp_path / "gone")
    assert with_room(tmp_path, SIZE) is None


def test_a_killed_run_s_folder_goes_when_it_is_opened_and_a_run_s_when_it_ends(
    tmp_path: Path, monkeypatch
):
    monkeypatch.undo()
    monkeypatch.setattr("mugrpo.disk.run_dir._SHM", tmp_path)
    run_dir = RunDir(tmp_path / "run")
    folder = memory_folder(run_dir.root)
    (folder / "update-000003").mkdir(parents=True)  # of a run that was killed
    with run_dir.locked():
        assert not folder.exists()
        (folder / "update-000004").mkdir(parents=True)
    assert not folder.exists() and run_dir.root.exists()


def test_the_free_memory_of_this_machine_is_less_than_all_of_it(monkeypatch):
    monkeypatch.undo()
    assert 0 < _free_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
