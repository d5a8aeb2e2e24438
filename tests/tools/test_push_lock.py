"""Whose copy a store holds, and that one push at a time changes it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.tools import push_lock
from mugrpo.tools.objects import Store
from mugrpo.tools.push_lock import LOCK, only_push
from mugrpo.tools.store import pull, push
from tests.faults.harm import accepted, contents, edited, refused
from tests.runs import Command

pytest_plugins = ["tests.run_fixtures"]


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a place for a copy, in memory or in a folder."""
    return f"memory://{uuid4().hex}/run" if request.param == "memory" else f"file://{tmp_path}/copy"


def lock(url: str, **said: object) -> None:
    Store(url).write(
        LOCK, json.dumps({"push": "another", "pid": 7, "host": "far", **said}).encode()
    )


def identity(run_dir: Path) -> str | None:
    stored: dict[str, str] = json.loads((run_dir / "config.json").read_text())
    return stored.get("id")


def test_the_second_of_two_pushes_to_one_place_is_refused(run_dir: Path, store: str):
    """It is tried before every object of the first one, and again when that has ended."""
    refusals = []

    def push_too() -> None:
        with pytest.raises(UsageError, match="gets another push") as refusal:
            push(RunDir(run_dir), store)
        refusals.append(str(refusal.value))

    written = push(RunDir(run_dir), store, check=push_too)
    assert len(refusals) == written > 10 and f"remove {store}/{LOCK}" in refusals[0]
    assert Store(store).read(LOCK) is None
    assert push(RunDir(run_dir), store) == 0


def test_a_push_that_fails_leaves_no_lock(run_dir: Path, store: str):
    def fail() -> None:
        raise ConnectionError

    with suppress(ConnectionError):
        push(RunDir(run_dir), store, check=fail)
    assert Store(store).read(LOCK) is None


def test_the_lock_of_a_push_that_was_killed_expires_after_an_hour(run_dir: Path, store: str):
    lock(store, renewed=time.time() - 3500)
    with pytest.raises(UsageError, match=r"pid 7 on host far .* expires after an hour"):
        push(RunDir(run_dir), store)
    lock(store, renewed=time.time() - 3700)
    assert push(RunDir(run_dir), store) > 10


HOUR = 3600.0
AHEAD = b'{"push": "another", "renewed": 4e9}'  # in 2096
UNDATED = [b"", b"\xff", b"7", b"[]", b'{"renewed": []}', b'{"renewed": NaN}', AHEAD]


@pytest.mark.parametrize("text", UNDATED)
def test_a_lock_that_tells_no_time_or_one_far_ahead_expires_an_hour_after_it_was_written(
    store: str, text: bytes, monkeypatch: pytest.MonkeyPatch
):
    """It may be one that is being written, or that of a push that was killed then."""
    Store(store).write(LOCK, text)
    written = Store(store).modified(LOCK)
    assert abs(written - time.time()) < 60
    with pytest.raises(UsageError, match="gets another push"), only_push(Store(store)):
        pass
    assert Store(store).read(LOCK) == text
    monkeypatch.setattr(time, "time", lambda: written + HOUR + 1)
    with only_push(Store(store)):
        assert Store(store).read(LOCK) != text


@pytest.mark.parametrize("text", UNDATED)
def test_where_the_store_tells_no_time_either_it_expires_an_hour_after_it_was_first_seen(
    store: str, text: bytes, monkeypatch: pytest.MonkeyPatch
):
    def untold(*_: object) -> None:
        raise NotImplementedError

    system, _ = fsspec.core.url_to_fs(store)
    monkeypatch.setattr(type(system), "modified", untold)
    Store(store).write(LOCK, text)
    now = time.time()
    for seconds in (0.0, HOUR - 1):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: now + seconds)
        with pytest.raises(UsageError, match="gets another push"), only_push(Store(store)):
            pass
    seen = json.loads(Store(store).read(LOCK) or b"")
    assert seen["renewed"] == now
    assert seen.get("push") == ("another" if text == AHEAD else None)  # its push can go on
    monkeypatch.setattr(time, "time", lambda: now + HOUR + 1)
    with only_push(Store(store)):
        pass


def test_in_a_folder_a_lock_is_created_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store, link = Store(f"file://{tmp_path}"), os.link

    def die(written: Path, path: Path) -> None:
        assert written.read_bytes() == b"first" and not path.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", die)
    with pytest.raises(KeyboardInterrupt):
        store.create(LOCK, b"first")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "link", link)
    store.create(LOCK, b"first")
    with pytest.raises(FileExistsError):
        store.create(LOCK, b"second")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"first"]


def test_a_folder_without_hard_links_takes_one_lock_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    store = Store(f"file://{tmp_path}")
    store.create(LOCK, b"first")
    with pytest.raises(FileExistsError):
        store.create(LOCK, b"second")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"first"]


def test_where_a_store_cannot_write_exclusively_the_lock_is_read_back(
    run_dir: Path, store: str, monkeypatch: pytest.MonkeyPatch
):
    """Both find no lock and create one; the other's is the last."""
    monkeypatch.setattr(Store, "create", lambda *_: lock(store, renewed=time.time()))
    with pytest.raises(UsageError, match="pid 7 on host far"):
        push(RunDir(run_dir), store)
    assert list(Store(store).sizes()) == [LOCK]  # and it is not ours to remove


def test_a_push_stops_if_another_has_taken_its_lock(store: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(push_lock, "_RENEWS", 0.0)
    with only_push(Store(store)) as renew:
        first = json.loads(Store(store).read(LOCK) or b"")["renewed"]
        renew()
        assert json.loads(Store(store).read(LOCK) or b"")["renewed"] > first
        lock(store, renewed=time.time())
        with pytest.raises(RunStopped, match=r"another push .* has begun meanwhile"):
            renew()
    assert Store(store).read(LOCK) is not None


def test_another_run_is_not_pushed_over_a_copy(
    run_dir: Path, reference: Path, store: str, command: Command
):
    """The two runs have the same config, and differ only in when they were begun."""
    push(RunDir(reference), store)
    pushed = {name: Store(store).read(name) for name in Store(store).sizes()}
    refused(
        command("push", run_dir, store), f"{store} holds the copy of another run than {run_dir}"
    )
    assert {name: Store(store).read(name) for name in Store(store).sizes()} == pushed
    system, root = fsspec.core.url_to_fs(store)
    system.rm(root, recursive=True)
    assert command("push", run_dir, store).status == 0


def test_a_copy_a_pull_and_a_resume_keep_the_runs_id(
    run_dir: Path, tmp_path: Path, store: str, command: Command
):
    first = identity(run_dir)
    assert first and command("train", run_dir, "--optimizer.lr", "2e-3", "--force").status == 0
    assert identity(run_dir) == first
    push(RunDir(run_dir), store)
    pull(store, RunDir(tmp_path / "pulled"))
    copied = Path(shutil.copytree(run_dir, tmp_path / "copied"))
    for again in (tmp_path / "pulled", copied):
        assert identity(again) == first and push(RunDir(again), store) == 0


def test_a_run_without_an_id_of_an_earlier_version_goes_on_without_one(
    run_dir: Path, tmp_path: Path, store: str, command: Command
):
    other = Path(shutil.copytree(run_dir, tmp_path / "other"))
    edited(run_dir / "config.json", id=None)
    accepted(run_dir)
    push(RunDir(run_dir), store)
    assert command("train", run_dir, "--optimizer.lr", "2e-3", "--force").status == 0
    assert identity(run_dir) is None and push(RunDir(run_dir), store) > 0
    before = contents(other)
    with pytest.raises(UsageError, match="the copy of another run"):
        push(RunDir(other), store)
    assert contents(other) == before
