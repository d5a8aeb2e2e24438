"""A run's copy in an object store: fsspec's memory file system stands in for one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import set_aside
from mugrpo.disk.run_dir import RunDir
from mugrpo.tools.objects import Store
from mugrpo.tools.repair import repair
from mugrpo.tools.store import pull, push
from tests.faults.harm import accepted, edited, flip_bit, stopped
from tests.runs import (
    Command,
    assert_same,
    checkpoints,
    finished,
    killed,
    mugrpo,
    read_metrics,
    shards,
)

pytest_plugins = ["tests.run_fixtures"]


class Cut(Exception):
    """A lost connection."""


@pytest.fixture
def store() -> Iterator[str]:
    """The URL of a run in memory, which is freed at the end, with all beside it."""
    folder = f"memory://{uuid4().hex}"
    yield f"{folder}/run"
    system, root = fsspec.core.url_to_fs(folder)
    with suppress(FileNotFoundError):
        system.rm(root, recursive=True)


def objects(store: str) -> dict[str, bytes]:
    system, root = fsspec.core.url_to_fs(store)
    return {p.removeprefix(root): system.cat_file(p) for p in system.find(root)}


@pytest.mark.promise("copy")
def test_a_run_that_was_pushed_is_pulled_and_goes_on_to_the_same_bits(
    tmp_path: Path, reference: Path, store: str
):
    """It is killed in its second stage, pushed, deleted, and pulled elsewhere."""
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


def test_objects_that_exist_are_not_written_again(reference: Path, store: str):
    push(RunDir(reference), store)
    assert push(RunDir(reference), store) == 0


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch):
    """Return a function that lets a push write so many objects and no more."""
    place, left = Store._place, 0

    def placed(store: Store, name: str) -> str:
        nonlocal left
        if left == 0:
            raise Cut
        left -= 1
        return place(store, name)

    def cut_after(run_dir: Path, url: str, count: int) -> bool:
        """Return whether the push was completed."""
        nonlocal left
        left = count
        with monkeypatch.context() as patched:
            patched.setattr(Store, "_place", placed)
            with suppress(Cut):
                push(RunDir(run_dir), url)
                return True
        return False

    return cut_after


def assert_whole(copy: Path) -> int:
    """Check that there is nothing to repair and that the metrics reach the newest checkpoint.

    Return that checkpoint's update.
    """
    assert repair(RunDir(copy), lambda _: None) == 0
    newest = max(checkpoints(copy), default=0)
    updates = [line["update"] for line in read_metrics(copy) if line["kind"] == "update"]
    assert max(updates, default=0) >= newest
    return newest


EVERY = [5, pytest.param(1, marks=pytest.mark.long)]  # at every fifth object, or at each


@pytest.mark.parametrize("every", EVERY)
def test_a_push_that_is_cut_short_anywhere_leaves_a_copy_that_is_whole(
    tmp_path: Path, reference: Path, store: str, cut, every: int
):
    """It is cut after some number of objects. What is pulled is an older state of the run."""
    found = set()
    for count in range(1, 100, every):
        done = cut(reference, f"{store}-{count}", count)
        pull(f"{store}-{count}", RunDir(tmp_path / str(count)))
        found.add(assert_whole(tmp_path / str(count)))
        if done:
            break
    assert done and found == {0, *checkpoints(reference)}


@pytest.mark.parametrize("every", EVERY)
def test_a_push_over_another_state_is_whole_wherever_it_is_cut(
    tmp_path: Path, reference: Path, store: str, cut, every: int
):
    """The other state has another seed: other shards and checkpoints under the same names."""
    other = tmp_path / "other"
    finished(other, "--seed", "11")
    edited(other / "config.json", id=json.loads((reference / "config.json").read_text())["id"])
    accepted(other)
    push(RunDir(reference), store)
    system, _ = fsspec.core.url_to_fs(store)
    for count in range(0, 100, every):
        url = f"{store}-{count}"
        system.copy(store, url, recursive=True)
        done = cut(other, url, count)
        pull(url, RunDir(tmp_path / str(count)))
        assert_whole(tmp_path / str(count))
        if done:
            break
    assert done and shards(tmp_path / str(count)) == shards(other)


def test_a_checkpoint_that_was_set_aside_does_not_come_back(
    tmp_path: Path, reference: Path, store: str, cut
):
    """Not even if the push is cut before its first object."""
    run_dir = tmp_path / "run"
    shutil.copytree(reference, run_dir)
    push(RunDir(run_dir), store)
    for update in (4, 6):
        set_aside(run_dir / "checkpoints" / f"update-{update:06d}")
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.write("\n")
    assert not cut(run_dir, store, 0)
    pull(store, RunDir(tmp_path / "copy"))
    assert checkpoints(tmp_path / "copy") == checkpoints(run_dir) == [2, 3]


def test_folders_that_were_set_aside_are_not_in_the_copy(
    tmp_path: Path, reference: Path, store: str
):
    """Here a stage of a policy that will not come again, and a damaged evaluation."""
    run_dir = tmp_path / "run"
    shutil.copytree(reference, run_dir)
    push(RunDir(run_dir), store)
    set_aside(run_dir / "stages" / "001")
    set_aside(run_dir / "evaluations" / "update-000003")
    push(RunDir(run_dir), store)
    names = " ".join(objects(store))
    assert "stages/001/" not in names and "update-000003/rollouts" not in names
    assert "stages/000" in names and "evaluations/update-000006" in names


def test_a_checkpoint_that_is_removed_meanwhile_is_skipped(
    tmp_path: Path, reference: Path, store: str
):
    """It is removed, as checkpoint.keep does, while the first shard is copied."""
    run_dir = tmp_path / "run"
    shutil.copytree(reference, run_dir)
    oldest = run_dir / "checkpoints" / "update-000002"
    push(RunDir(run_dir), store, check=lambda: shutil.rmtree(oldest, ignore_errors=True))
    pull(store, RunDir(tmp_path / "copy"))
    assert checkpoints(tmp_path / "copy") == [3, 4, 6]
    assert_whole(tmp_path / "copy")


def test_a_checkpoint_that_the_run_no_longer_has_is_removed_from_the_copy(
    tmp_path: Path, reference: Path, store: str
):
    """Otherwise a pulled run would resume from it."""
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
    system, root = fsspec.core.url_to_fs(url)
    shard = f"{root}/stages/000/rollouts/shard-00000.parquet"
    good = system.cat_file(shard)
    system.pipe_file(shard, good[:-1])
    told = command("pull", url, tmp_path / "copy")
    stopped(told, f"mugrpo pull {url} {tmp_path}/copy")
    system.pipe_file(shard, good)
    told = command("pull", url, tmp_path / "copy")
    assert told.status == 0 and f"resume with `mugrpo train {tmp_path}/copy`" in told.out
    assert shards(tmp_path / "copy") == shards(reference)


def test_a_run_that_appears_during_a_pull_is_left_as_it_is(
    tmp_path: Path, reference: Path, store: str
):
    push(RunDir(reference), store)

    def begin_another() -> None:
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "config.json").write_text("another run's")

    with pytest.raises(UsageError, match="exists already; name a new folder"):
        pull(store, RunDir(tmp_path / "run"), check=begin_another)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]


def test_bad_urls_and_folders_are_refused(tmp_path: Path, reference: Path, store: str):
    with pytest.raises(UsageError, match="exists already; name a new directory"):
        pull(store, RunDir(tmp_path))
    with pytest.raises(UsageError, match=r"holds no run \(it has no config\.json\)"):
        pull(store, RunDir(tmp_path / "new"))
    with pytest.raises(UsageError, match="nosuch://bucket/run cannot be used"):
        push(RunDir(reference), "nosuch://bucket/run")
    with pytest.raises(UsageError, match="is not a run"):
        push(RunDir(tmp_path / "nothing"), store)


ODD = [
    "../outside.json",
    "../../../outside.json",
    "/outside.json",
    "//outside.json",
    "samples/../../outside.json",
    "samples/./outside.json",
    "samples//outside.json",
    "samples/",
    "samples/..\\outside.json",
    "\\\\host\\share",
    "samples/C:outside.json",
    "samples/model.json:stream",
    "samples/\0",
    "samples/\x1b[2J.json",
    "samples/\u202egpj.json",
    "samples/nul",
    "samples/CON.json",
    "com1/model.json",
    "config.json/inside",
]


@pytest.mark.parametrize("name", ODD)
def test_a_store_with_an_odd_name_is_refused_before_anything_is_written(
    tmp_path: Path, reference: Path, store: str, monkeypatch: pytest.MonkeyPatch, name: str
):
    push(RunDir(reference), store)
    system, root = fsspec.core.url_to_fs(store)
    honest = system.find(root, detail=True)
    monkeypatch.setattr(
        type(system), "find", lambda *_, **__: {**honest, f"{root}/{name}": {"size": 1}}
    )
    moved = tmp_path / "deep" / "run"
    with pytest.raises(UsageError, match="has an object named"):
        pull(store, RunDir(moved))
    assert not moved.parent.exists()


@pytest.mark.parametrize("name", ODD[:-1])
def test_a_seal_that_lists_an_odd_name_is_refused_before_anything_is_written(
    tmp_path: Path, reference: Path, store: str, name: str
):
    push(RunDir(reference), store)
    system, root = fsspec.core.url_to_fs(store)
    (seal, *_) = [path for path in system.find(root) if path.endswith("/sha256.json")]
    listed = json.loads(system.cat_file(seal)) | {name: "0" * 64}
    system.pipe_file(seal, json.dumps(listed).encode())
    moved = tmp_path / "deep" / "run"
    with pytest.raises(UsageError, match="has an object named"):
        pull(store, RunDir(moved))
    assert not moved.parent.exists()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b'{"shards": []}',
        b'{"shards": {"0": {}}}',
        b'{"shards": {"0": {"sha256": 7}}}',
        b'{"shards": {"0": {"sha256": "../../x"}}}',
        b'{"shards": {"../0": {"sha256": "' + b"0" * 64 + b'"}}}',
        b"[" * 100_000,
    ],
)
def test_a_list_that_is_none_is_refused_by_pull_and_replaced_by_push(
    tmp_path: Path, reference: Path, store: str, text: bytes
):
    push(RunDir(reference), store)
    system, root = fsspec.core.url_to_fs(store)
    manifest = f"{root}/stages/000/rollouts/manifest.json"
    system.pipe_file(manifest, text)
    with pytest.raises(UsageError, match=r"manifest\.json does not list files"):
        pull(store, RunDir(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    push(RunDir(reference), store)
    pull(store, RunDir(tmp_path / "run"))
    assert shards(tmp_path / "run") == shards(reference)


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"7", b'{"a": 7}', b'{"a": "../../x"}', b'{"a": {}}', b"[" * 100_000]
)
def test_a_seal_that_is_none_is_refused_with_the_store_and_the_object(
    tmp_path: Path, reference: Path, store: str, text: bytes
):
    push(RunDir(reference), store)
    system, root = fsspec.core.url_to_fs(store)
    name = "checkpoints/update-000006/sha256.json"
    system.pipe_file(f"{root}/{name}", text)
    with pytest.raises(UsageError) as refused:
        pull(store, RunDir(tmp_path / "run"))
    assert str(refused.value) == (
        f"{store}/{name} does not list files with their checksums; push again"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", [b"", b"[" * 100_000, b"[]", b"{}", b'{"format": 2}'])
def test_a_copy_whose_config_is_none_can_be_pulled_and_is_refused_then(
    tmp_path: Path, reference: Path, store: str, command: Command, text: bytes
):
    push(RunDir(reference), store)
    system, root = fsspec.core.url_to_fs(store)
    system.pipe_file(f"{root}/config.json", text)
    pull(store, RunDir(tmp_path / "run"))
    ended = command("train", tmp_path / "run")
    assert ended.status == 2 and f"{tmp_path}/run/config.json is not the config.json" in ended.err


def test_a_list_of_many_megabytes_is_not_read(
    tmp_path: Path, reference: Path, store: str, monkeypatch: pytest.MonkeyPatch
):
    push(RunDir(reference), store)
    system, root = fsspec.core.url_to_fs(store)
    seal = f"{root}/checkpoints/update-000006/sha256.json"
    system.pipe_file(seal, b"{}" + b" " * (16 << 20))
    monkeypatch.setattr(Store, "read", lambda *_: pytest.fail("read"))
    with pytest.raises(UsageError, match=r"sha256\.json has 16,777,218 bytes, too many for a list"):
        pull(store, RunDir(tmp_path / "run"))


def test_a_copy_larger_than_the_disk_is_refused_before_anything_is_written(
    tmp_path: Path, reference: Path, store: str, monkeypatch: pytest.MonkeyPatch
):
    push(RunDir(reference), store)
    system, root = fsspec.core.url_to_fs(store)
    huge = {path: {"size": 1 << 60} for path in system.find(root) if path.endswith(".parquet")}
    honest = system.find(root, detail=True)
    monkeypatch.setattr(type(system), "find", lambda *_, **__: honest | huge)
    with pytest.raises(UsageError, match=r"are free at .*; make room"):
        pull(store, RunDir(tmp_path / "deep" / "run"))
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples", "stages/000/rollouts/manifest.json"])
def test_a_folder_with_a_link_out_of_it_is_not_pulled(tmp_path: Path, reference: Path, name: str):
    """It would bring a file of the one who pulls into a run that may be pushed again."""
    store, private = tmp_path / "store", tmp_path / "private"
    shutil.copytree(reference, private)
    push(RunDir(reference), f"file://{store}/run")
    place = store / "run" / name
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    place.symlink_to(private / name)
    with pytest.raises(UsageError, match=f"{name} is a link out of the run"):
        pull(f"file://{store}/run", RunDir(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_something_else_in_the_copy_does_not_stop_a_push(reference: Path, store: str):
    push(RunDir(reference), store)
    system, root = fsspec.core.url_to_fs(store)
    system.pipe_file(f"{root}/notes: mine.txt", b"mine")
    assert push(RunDir(reference), store) == 0
    assert "/notes: mine.txt" in objects(store)


def test_a_run_that_lacks_a_shard_is_not_pushed(tmp_path: Path, reference: Path, store: str):
    run_dir = Path(shutil.copytree(reference, tmp_path / "run"))
    (run_dir / "stages" / "000" / "rollouts" / "shard-00001.parquet").unlink()
    with pytest.raises(RunStopped, match=r"shard-00001\.parquet is gone: if it was replaced"):
        push(RunDir(run_dir), store)
