"""The stage loop: phases alone, stage ends without checkpoints, old checkpoints removed."""

import shutil
from pathlib import Path

import pytest

from mugrpo.report.readable import size_text
from tests.faults.harm import contents, stopped
from tests.runs import (
    Command,
    assert_same,
    checkpoints,
    final_weights,
    finished,
    killed,
    mugrpo,
    read_metrics,
    shard_path,
    shards,
    state,
    write_config,
)


@pytest.mark.promise("phases")
@pytest.mark.long
def test_phases_in_separate_processes_give_the_bits_of_train(reference: Path, tmp_path: Path):
    run_dir = tmp_path / "run"
    config = write_config(tmp_path / "config")
    for stage in range(2):
        for phase in ("generate", "score", "optimize"):
            ended = mugrpo(phase, config, "--run-dir", run_dir, "--stage", stage)
            assert (ended.status, ended.err) == (0, "")
    assert final_weights(run_dir) == final_weights(reference)
    ours, theirs = (
        {name: sha256 for name, sha256 in shards(run).items() if name.startswith("stages/")}
        for run in (run_dir, reference)
    )
    assert ours == theirs
    for kind in ("refresh", "update"):
        ours, theirs = (
            [line for line in read_metrics(run) if line["kind"] == kind]
            for run in (run_dir, reference)
        )
        assert ours == theirs


def test_train_on_a_finished_run_changes_nothing_and_prints_the_summary(
    reference: Path, tmp_path: Path, command: Command
):
    run_dir = Path(shutil.copytree(reference, tmp_path / "run"))
    command("train", run_dir)  # it tells that the run has moved
    files = contents(run_dir)
    again = command("train", run_dir)
    assert (again.status, again.err) == (0, "")
    assert contents(run_dir) == files
    summary = again.out[again.out.index("6 updates\n") :]
    assert "accuracy" in summary and "refreshes" in summary
    whole, saved = (
        sum(map(len, contents(of).values())) for of in (run_dir, run_dir / "checkpoints")
    )
    assert summary.splitlines()[-3:] == [
        f"checkpoint  {run_dir / 'checkpoints' / 'update-000006'}",
        f"disk        {size_text(whole)}, of which 6 checkpoints take {size_text(saved)}",
        f"report      mugrpo report {run_dir}",
    ]


def test_a_collapse_stops_a_run_that_asks_for_it_once_and_its_report_says_so(tmp_path, command):
    """With a learning rate of 0.5 no update leaves a right answer, where most were right."""
    run_dir = tmp_path / "run"
    options = ("--optimizer.lr", 0.5, "--task.eval_problems", 16)
    stop = ("--evaluation.stop_on_collapse", "true")
    ended = command("train", write_config(tmp_path), "--run-dir", run_dir, *options, *stop)
    stopped(ended, "a collapse: accuracy fell from 0.625 at update 0 to 0;")
    assert state(run_dir).last_line == "evaluation 3"
    assert command("report", run_dir).status == 0
    page = (run_dir / "report.html").read_text()
    sign = page.index("warning sign at update 3: a collapse: accuracy fell from 0.625")
    assert sign < page.index("<svg")  # above the first chart
    assert command("train", run_dir).status == 0
    assert state(run_dir).last_line == "evaluation 6"


def test_optimize_measures_what_a_kill_after_the_last_update_has_left_out(
    reference: Path, tmp_path: Path
):
    run_dir = tmp_path / "run"
    killed(run_dir, "evaluation without metrics line", 3)
    assert (state(run_dir).checkpoints[-1], state(run_dir).last_line) == (6, "update 6")
    ended = mugrpo("optimize", run_dir, "--stage", 1)
    assert (ended.status, ended.err) == (0, ""), ended
    assert_same(run_dir, reference)


def written(run_dir: Path) -> tuple[int, int]:
    """Return which file the first shard of stage 1 is, and when it was written."""
    found = shard_path(run_dir, 1, 0).stat()
    return found.st_ino, found.st_mtime_ns


@pytest.mark.promise("checkpoints")
@pytest.mark.parametrize(
    ("place", "nth", "newest"),
    [
        ("gradient", 4, 2),
        pytest.param("engine batch", 10, 2, marks=pytest.mark.long),
        pytest.param("scoring", 46, 2, marks=pytest.mark.long),
        pytest.param("gradient", 6, 4, marks=pytest.mark.long),
    ],
)
def test_a_stage_end_without_a_checkpoint_is_made_again_to_the_same_bits(
    reference: Path, tmp_path: Path, place: str, nth: int, newest: int
):
    run_dir = tmp_path / "run"
    killed(run_dir, place, nth)
    on_disk = state(run_dir)
    assert on_disk.checkpoints[-1] == newest and 3 not in on_disk.checkpoints
    assert on_disk.rollouts[1] > 0
    kept = written(run_dir)
    finished(run_dir)
    assert checkpoints(run_dir) == [2, 4, 6]
    assert written(run_dir) == kept
    assert_same(run_dir, reference)


@pytest.mark.parametrize(
    ("place", "nth", "kept"),
    [
        ("old checkpoint", 1, (2,)),  # 1 is renamed for removal
        pytest.param("engine batch", 9, (3,), marks=pytest.mark.long),
        pytest.param("half a checkpoint", 6, (3, 5), marks=pytest.mark.long),
    ],
)
def test_keeping_one_checkpoint_leaves_the_newest_and_the_one_its_stage_began_from(
    reference: Path, tmp_path: Path, place: str, nth: int, kept: tuple[int, ...]
):
    run_dir = tmp_path / "run"
    options = ("--checkpoint.every", 1, "--checkpoint.keep", 1)
    killed(run_dir, place, nth, *options)
    assert state(run_dir).checkpoints == kept
    finished(run_dir, *options)
    assert checkpoints(run_dir) == [3, 6]
    assert len([*(run_dir / "checkpoints").iterdir()]) == 2
    assert_same(run_dir, reference)


NOTHING_DUE = ("--checkpoint.every", 100)


@pytest.mark.long
@pytest.mark.parametrize(("minutes", "kept"), [("1e-9", (3, 5)), ("0", ())])
def test_a_run_without_checkpoints_saves_after_some_minutes_of_updates(
    reference: Path, tmp_path: Path, minutes: str, kept: tuple[int, ...]
):
    """It keeps the newest one, and the one that its second stage began from."""
    run_dir, options = tmp_path / "run", (*NOTHING_DUE, "--checkpoint.minutes", minutes)
    killed(run_dir, "gradient", 6, *options)
    assert state(run_dir).checkpoints == kept
    finished(run_dir, *options)
    assert checkpoints(run_dir) == ([3, 6] if kept else [6])
    assert_same(run_dir, reference)
