"""Whose copy a store holds, and that one push at a time changes it."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("text", [b"", b"\xff", b"7", b"[]", b'{"renewed": []}'])
def test_a_lock_that_cannot_be_read_is_held(run_dir: Path, store: str, text: bytes):
    """It may be one that is being written."""
    Store(store).write(LOCK, text)
    with pytest.raises(UsageError, match="gets another push"):
        push(RunDir(run_dir), store)


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
