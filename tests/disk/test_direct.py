"""Files past the page cache have the bytes of plain ones, and fall back to plain ones."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from mugrpo.disk import direct as module
from mugrpo.disk.direct import direct
from tests.cases import table

BUFFER = 3 * 4096


@pytest.fixture(autouse=True)
def _small_buffer(monkeypatch):
    monkeypatch.setattr(module, "_BUFFER", BUFFER)


@table("sizes", [[], [1], [4096], [BUFFER], [5, 0, BUFFER - 5], [7, 40_000, 1]])
def test_the_bytes_are_those_that_were_written(tmp_path, sizes):
    parts = [os.urandom(size) for size in sizes]
    with direct(tmp_path / "file") as file:
        for part in parts:
            file.write(memoryview(part))
    assert (tmp_path / "file").read_bytes() == b"".join(parts)


def test_numbers_are_written_as_bytes(tmp_path):
    with direct(tmp_path / "file") as file:
        file.write(memoryview(b"\x01\x00\x00\x00\x02\x00\x00\x00").cast("i"))
    assert (tmp_path / "file").read_bytes() == b"\x01\x00\x00\x00\x02\x00\x00\x00"


def test_an_older_file_is_replaced_however_long_it_was(tmp_path):
    (tmp_path / "file").write_bytes(bytes(100_000))
    with direct(tmp_path / "file") as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_file_system_without_such_files_gets_a_plain_one(tmp_path, monkeypatch):
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "open", refuse)
    with direct(tmp_path / "file") as file:
        file.write(b"plain")
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"plain"


def test_a_file_system_that_asks_for_more_than_alignment_gets_the_same_bytes(tmp_path):
    data = os.urandom(2 * BUFFER + 10)
    with direct(tmp_path / "file") as file:
        strict = _Strict(file._file)
        file._file = strict
        file.write(data)
    assert (tmp_path / "file").read_bytes() == data
    assert strict.refused == 1


class _Strict:
    """A raw file that refuses to be written past the cache."""

    def __init__(self, file):
        self.file, self.refused = file, 0

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        if fcntl.fcntl(self.file, fcntl.F_GETFL) & os.O_DIRECT:
            self.refused += 1
            raise OSError(errno.EINVAL, "Invalid argument")
        return self.file.write(data)


def test_a_full_disk_is_told_as_such_although_a_part_was_written(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught, direct(tmp_path / "file") as file:
        file._file = _Full(file._file)
        file.write(os.urandom(BUFFER))
    assert caught.value.errno == errno.ENOSPC


class _Full(_Strict):
    """A raw file on a disk with 100 bytes left, which ends a write at an unaligned place."""

    def write(self, data):
        self.refused += 1
        if self.refused == 1:
            return self.file.write(data[:4096]) - 3996
        if fcntl.fcntl(self.file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        raise OSError(errno.ENOSPC, "No space left on device")
