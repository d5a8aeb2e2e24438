"""A run's copy in an object store: fsspec's memory file system stands for one."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from mugrpo.errors import RunStopped, UsageError
from mugrpo.repair import repair
from mugrpo.run_dir import RunDir
from mugrpo.store import pull, push
from tests.faults.harm import flip_bit
from tests.runs import assert_same, checkpoints, killed, mugrpo, read_metrics, shards

pytest_plugins = ["tests.run_fixtures"]


class Cut(Exception):
    """The connection is gone."""


@pytest.fixture
def store() -> str:
    return f"memory://{uuid4().hex}/run"


def objects(store: str) -> dict[str, bytes]:
    system, root = fsspec.core.url_to_fs(store)
    return {p.removeprefix(root): system.cat_file(p) for p in system.find(root)}


def test_a_run_that_was_pushed_is_pulled_and_goes_on_to_the_same_bits(
    tmp_path: Path, reference: Path, store: str
):
    """Killed in its second stage, pushed, lost, pulled elsewhere."""
    run_dir = tmp_path / "run"
    killed(run_dir, "gradient", 5)
    assert push(RunDir(run_dir), store) > 10
    moved = tmp_path / "elsewhere" / "run"
    pull(store, RunDir(moved))
    assert shards(moved) == shards(run_dir) and checkpoints(moved) == checkpoints(run_dir)
    shutil.rmtree(run_dir)
    ended = mugrpo("train", moved)
    assert (ended.status, ended.err) == (0, ""), ended
    assert_same(moved, reference)


def test_what_is_there_is_not_written_again(reference: Path, store: str):
    push(RunDir(reference), store)
    assert push(RunDir(reference), store) == 0


def test_a_push_that_is_cut_short_anywhere_leaves_a_copy_that_is_whole(
    tmp_path: Path, reference: Path, store: str, monkeypatch: pytest.MonkeyPatch
):
    """After every number of objects: what is pulled is an older state of the run, and whole."""
    whole_run = push(RunDir(reference), store)
    memory = type(fsspec.filesystem("memory"))
    write, left = memory.pipe_file, 0

    def pipe_file(system, path, data):
        nonlocal left
        if left == 0:
            raise Cut
        left -= 1
        write(system, path, data)

    monkeypatch.setattr(memory, "pipe_file", pipe_file)
    found = set()
    for count in range(1, whole_run):
        left, cut_short = count, f"{store}-{count}"
        with pytest.raises(Cut):
            push(RunDir(reference), cut_short)
        copy = tmp_path / str(count)
        pull(cut_short, RunDir(copy))
        assert repair(RunDir(copy), lambda _: None) == 0
        newest = max(checkpoints(copy), default=0)
        updates = [line["update"] for line in read_metrics(copy) if line["kind"] == "update"]
        assert max(updates, default=0) >= newest  # those that the checkpoint rests on
        found.add(newest)
    assert found == {0, *checkpoints(reference)[:-1]}


def test_a_checkpoint_that_the_run_has_no_more_is_taken_out_of_the_copy(
    tmp_path: Path, reference: Path, store: str
):
    """Or it would be what a pulled run goes on from."""
    run_dir = tmp_path / "run"
    shutil.copytree(reference, run_dir)
    push(RunDir(run_dir), store)
    last = max(checkpoints(run_dir))
    shutil.rmtree(run_dir / "checkpoints" / f"update-{last:06d}")
    push(RunDir(run_dir), store)
    assert not [name for name in objects(store) if f"checkpoints/update-{last:06d}/" in name]
    pull(store, RunDir(tmp_path / "copy"))
    assert checkpoints(tmp_path / "copy") == checkpoints(run_dir)


def test_a_damaged_file_is_not_pushed_and_a_damaged_object_not_pulled(
    tmp_path: Path, reference: Path, store: str
):
    run_dir = tmp_path / "run"
    shutil.copytree(reference, run_dir)
    model = run_dir / "checkpoints" / "update-000002" / "model.safetensors"
    good = model.read_bytes()
    flip_bit(model)
    with pytest.raises(RunStopped, match=r"does not match its checksum.*mugrpo repair"):
        push(RunDir(run_dir), store)
    model.write_bytes(good)
    push(RunDir(run_dir), store)
    system, root = fsspec.core.url_to_fs(store)
    system.pipe_file(f"{root}/checkpoints/update-000002/model.safetensors", good[:-1])
    with pytest.raises(
        RunStopped, match=r"update-000002/model\.safetensors is missing or does not"
    ):
        pull(store, RunDir(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_the_command_line_pushes_and_pulls(tmp_path: Path, reference: Path, command):
    url = f"file://{tmp_path}/store/run"
    told = command("push", reference, url)
    assert told.status == 0 and "objects written to" in told.out
    told = command("pull", url, tmp_path / "copy")
    assert told.status == 0 and f"resume with `mugrpo train {tmp_path}/copy`" in told.out
    assert shards(tmp_path / "copy") == shards(reference)


def test_bad_places_are_refused(tmp_path: Path, reference: Path, store: str):
    with pytest.raises(UsageError, match="is there already; name a new directory"):
        pull(store, RunDir(tmp_path))
    with pytest.raises(UsageError, match=r"holds no run \(it has no config\.json\)"):
        pull(store, RunDir(tmp_path / "new"))
    with pytest.raises(UsageError, match="nosuch://bucket/run cannot be used"):
        push(RunDir(reference), "nosuch://bucket/run")
    with pytest.raises(UsageError, match="is no run"):
        push(RunDir(tmp_path / "nothing"), store)
