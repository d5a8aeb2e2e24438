"""Run directories that are locked, hold something else, or are in an odd place."""

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import table
from tests.faults.harm import contents, refused
from tests.runs import Command, assert_same, start, write_config
from tests.waiting import until


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


@table(("name", "words"), [("lock", ["train"]), ("metrics.jsonl", ["repair"])])
def test_no_command_follows_a_link_out_of_a_run(tmp_path, command, reference, name, words):
    run_dir = Path(shutil.copytree(reference, tmp_path / "run"))
    precious = tmp_path / "precious"
    precious.write_text("not the run's")
    if (run_dir / name).exists():
        (run_dir / name).rename(tmp_path / "was")
    (run_dir / name).symlink_to(precious)
    refused(command(*words, run_dir), f"{run_dir / name} is a link out of the run")
    assert precious.read_text() == "not the run's"


@table("linked", ["logs", "samples", "stages/001", "checkpoints"])
def test_no_folder_around_a_run_lets_it_link_out(tmp_path, command, reference, linked):
    """The runs of a bakeoff stand in such folders. That proves nothing about what stands there."""
    run_dir = Path(shutil.copytree(reference, tmp_path / "bakeoff" / "stage-000" / "run"))
    own = Path(shutil.copytree(reference, tmp_path / "own"))
    before = contents(own)
    shutil.rmtree(run_dir / linked, ignore_errors=True)
    (run_dir / linked).symlink_to(own / linked)
    for words in (["train"], ["repair"], ["report"]):
        refused(command(*words, run_dir), f"{run_dir / linked} is a link out of the run")
    assert contents(own) == before


@pytest.mark.long
def test_the_lock_of_a_killed_process_is_free_and_reported(tmp_path, command, reference):
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
