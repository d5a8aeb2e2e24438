"""Run directories that are locked, hold something else, or are in an odd place."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harm import accepted, contents, edited, refused
from tests.runs import (
    Command,
    assert_same,
    finished,
    killed,
    start,
    unfinished,
    write_config,
)
from tests.waiting import until

pytest_plugins = ["tests.run_fixtures"]


@contextlib.contextmanager
def at_work(run_dir: Path) -> Iterator[int]:
    """Hold a run in its first shard, and yield its process id."""
    gate = run_dir.parent / "gate"
    config = write_config(run_dir.parent / "config")
    begun = start(
        "train", config, "--run-dir", run_dir, at="engine batch", nth=2, act=f"hold {gate}"
    )
    until(Path(f"{gate}.held").exists, 60)
    try:
        yield begun.pid
    finally:
        Path(f"{gate}.go").touch()
        ended = begun.end()
    assert ended.status in (0, -signal.SIGKILL), ended


@pytest.mark.promise("second writer")
def test_a_second_process_is_refused_with_the_first_ones_pid_and_disturbs_nothing(
    tmp_path: Path, command: Command, reference: Path
):
    run_dir = tmp_path / "run"
    config = write_config(tmp_path / "config")
    with at_work(run_dir) as pid:
        before = contents(run_dir)
        for words in (["train", config, "--run-dir", run_dir], ["repair", run_dir]):
            refused(command(*words), f"{run_dir} is locked by pid {pid} on host ", " since ")
        assert contents(run_dir) == before
    assert_same(run_dir, reference)
    assert "unlocking" not in command("train", run_dir).out


def test_a_folder_that_is_no_run_is_not_searched_for_links(tmp_path: Path, command: Command):
    """Its pipes and links are its owner's, who gave the wrong --run-dir."""
    home = tmp_path / "home"
    (home / "deep").mkdir(parents=True)
    os.mkfifo(home / "deep" / "agent")
    (home / "deep" / "link").symlink_to("/")
    ended = command("train", write_config(tmp_path / "config"), "--run-dir", home)
    refused(ended, f"{home} is not a run (it has no config.json) but holds deep")


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "checkpoints", "samples"])
@pytest.mark.parametrize("words", [["train"], ["repair"], ["evaluate"], ["report"], ["push"]])
def test_no_command_follows_a_link_out_of_a_run(
    tmp_path: Path, command: Command, reference: Path, name: str, words: list[str]
):
    run_dir = Path(shutil.copytree(reference, tmp_path / "run"))
    precious = tmp_path / "precious"
    precious.write_text("not the run's")
    if (run_dir / name).exists():
        (run_dir / name).rename(tmp_path / "was")
    (run_dir / name).symlink_to(precious)
    to = [f"file://{tmp_path}/copy"] if words == ["push"] else []
    refused(command(*words, run_dir, *to), f"{run_dir / name} is a link out of the run")
    assert precious.read_text() == "not the run's"


def test_the_lock_of_a_killed_process_is_free_and_reported(
    tmp_path: Path, command: Command, reference: Path
):
    run_dir = tmp_path / "run"
    config = write_config(tmp_path / "config")
    with at_work(run_dir) as pid:
        os.kill(pid, signal.SIGKILL)
    again = command("train", config, "--run-dir", run_dir)
    assert again.status == 0
    assert re.search(
        rf"the last process here \(pid {pid} on .*\) ended without unlocking", again.out
    )
    assert_same(run_dir, reference)


def test_a_directory_with_other_files_is_refused_and_left_as_it_is(
    tmp_path: Path, command: Command
):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tmp.1").write_text("draft")
    (folder / "chapter").write_text("text")
    config = write_config(tmp_path)
    for words in (["train", config, "--run-dir", folder], ["train", folder]):
        refused(command(*words), f"{folder} is not a run", "but holds chapter", "--run-dir")
    refused(command("repair", folder), f"{folder} is not a run")
    assert sorted(p.name for p in folder.iterdir()) == ["chapter", "chapter.tmp.1"]


def test_an_empty_directory_is_not_a_run_but_can_become_one(tmp_path: Path, command: Command):
    folder = tmp_path / "empty"
    folder.mkdir()
    refused(command("train", folder), f"{folder} is an empty directory", "config file")
    refused(command("repair", folder), f"{folder} is not a run")
    words = ["generate", write_config(tmp_path), "--run-dir", folder, "--stage", "0"]
    assert command(*words).status == 0


def test_a_newer_format_is_refused_by_its_number(run_dir: Path, command: Command):
    edited(run_dir / "config.json", format=4)
    accepted(run_dir)
    before = contents(run_dir)
    for words in (["train", run_dir], ["repair", run_dir]):
        refused(command(*words), f"{run_dir} has run format 4", "reads format 3", "--run-dir")
    assert contents(run_dir) == before


@pytest.mark.parametrize("text", ["[]", '{"seed": 0}'])
def test_a_config_json_of_something_else_is_refused(run_dir: Path, command: Command, text: str):
    (run_dir / "config.json").write_bytes(text.encode("latin-1"))
    accepted(run_dir)
    refused(command("train", run_dir), f"{run_dir}/config.json is not the config.json of a run")


def test_leftovers_are_removed_even_if_a_parent_is_named_like_one(tmp_path: Path, reference: Path):
    run_dir = tmp_path / "job.tmp.17" / "run"
    killed(run_dir, "half a rollout shard", 2)
    assert unfinished(run_dir) == ("shard-00001.parquet",)
    finished(run_dir)
    assert_same(run_dir, reference)


def test_a_file_in_place_of_a_run_is_refused(tmp_path: Path, command: Command):
    file = tmp_path / "file"
    file.write_text("text")
    config = write_config(tmp_path)
    for words in (["train", config, "--run-dir", file], ["repair", file]):
        refused(command(*words), f"{file} is not a ")
    refused(command("train", config, "--run-dir", file / "run"), str(file))
    assert file.read_text() == "text"


@pytest.mark.parametrize("key", ["config", "provenance"])
def test_a_config_json_without_its_parts_is_refused(run_dir: Path, command: Command, key: str):
    edited(run_dir / "config.json", **{key: None})
    accepted(run_dir)
    refused(
        command("train", run_dir), f"{run_dir}/config.json is not the config.json of a run", key
    )


def test_a_run_that_cannot_be_written_to_is_refused(
    small_disk: Path, fifth_update: Path, command: Command
):
    run_dir = Path(shutil.copytree(fifth_update, small_disk / "run"))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    refused(
        command("train", run_dir),
        f"{run_dir} cannot be written to ({run_dir / 'lock'}: Read-only file system)",
        "name another --run-dir",
    )


def test_run_dir_is_refused_if_the_target_is_already_a_run(run_dir: Path, command: Command):
    ended = command("train", run_dir, "--run-dir", run_dir.parent / "other")
    refused(ended, "--run-dir")


@pytest.mark.parametrize("name", ["update-5", "update-0000005"])
def test_a_folder_with_a_wrong_name_is_not_taken_for_a_checkpoint(
    run_dir: Path, command: Command, reference: Path, name: str
):
    (run_dir / "checkpoints" / name).mkdir()
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


def test_a_run_within_the_models_directory_is_resumed(
    model: Path, tmp_path: Path, command: Command
):
    words = [write_config(tmp_path), "--run-dir", model / "runs" / "a", "--model.path", model]
    assert command("generate", *words).status == 0
    assert command("train", *words).status == 0
