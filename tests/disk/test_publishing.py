"""Sealed folders: what is checked, and what is not read twice."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from mugrpo.disk import publishing
from mugrpo.disk.publishing import (
    SUMS,
    publish_file,
    publish_folder,
    seal_folder,
    sealed_folder_fault,
    without_fsync,
)


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    with publish_folder(tmp_path / "sealed") as folder:
        (folder / "part").mkdir()
        (folder / "weights").write_bytes(b"abc")
        (folder / "part" / "moments").write_bytes(b"def")
        seal_folder(folder)
    return tmp_path / "sealed"


def test_what_this_process_has_written_or_checked_is_not_read_again(sealed, monkeypatch):
    assert json.loads((sealed / SUMS).read_text()) == {
        "part/moments": hashlib.sha256(b"def").hexdigest(),
        "weights": hashlib.sha256(b"abc").hexdigest(),
    }
    read: list[Path] = []
    real = publishing.sha256_of
    monkeypatch.setattr(publishing, "sha256_of", lambda path: read.append(path) or real(path))
    assert sealed_folder_fault(sealed) is None and read == []
    publishing._intact.clear()  # as in another process
    assert sealed_folder_fault(sealed) is None
    assert sorted(path.name for path in read) == ["moments", "weights"]
    assert sealed_folder_fault(sealed) is None and len(read) == 2


def test_a_checked_part_does_not_stand_for_the_others(sealed: Path):
    publishing._intact.clear()  # as in another process
    (sealed / "weights").write_bytes(b"axc")  # the second of two parts
    assert sealed_folder_fault(sealed, 0, 2) is None
    assert sealed_folder_fault(sealed, 0, 2) is None
    for part, parts in ((1, 2), (0, 1)):
        fault = sealed_folder_fault(sealed, part, parts)
        assert fault == "has a weights that does not match its checksum"


@pytest.mark.parametrize("name", ["weights", "part/moments"])
def test_a_file_that_is_changed_or_lost_later_is_found(sealed: Path, name: str):
    assert sealed_folder_fault(sealed) is None
    (sealed / name).write_bytes(b"axc")  # of the same size
    assert sealed_folder_fault(sealed) == f"has a {name} that does not match its checksum"
    assert sealed_folder_fault(sealed) is not None
    (sealed / name).unlink()
    assert sealed_folder_fault(sealed) == f"lacks {name}"
    (sealed / SUMS).unlink()
    assert sealed_folder_fault(sealed) == f"has no readable {SUMS}"


def test_what_is_published_fleetingly_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    """A file and its folder are two waits; a folder, its file and the folder above are three."""
    waits = list[int]()
    monkeypatch.setattr(os, "fsync", waits.append)

    def publish(name: str) -> int:
        before = len(waits)
        with publish_file(tmp_path / name / "a") as file:
            file.write(b"a")
        with publish_folder(tmp_path / name / "b") as folder:
            (folder / "c").write_bytes(b"c")
        assert sorted(p.name for p in (tmp_path / name).rglob("*")) == ["a", "b", "c"]
        return len(waits) - before

    with without_fsync():
        assert publish("without_fsync") == 0
    assert publish("lasting") == 5
