"""Scores of a judge that has changed are made again in the current stage, and only there."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.runs import Command, mugrpo, read_metrics, state
from tests.stages.scored import entries, files, judges, refreshes, written

pytest_plugins = ["tests.run_fixtures"]

ANOTHER = ("--rewards.truncated", "scored", "--force")


@pytest.fixture
def begun(scored_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(scored_run, tmp_path / "run"))


def test_scores_of_another_judge_are_made_again_in_the_current_stage(begun: Path, command: Command):
    rollouts, scores, old = files(begun, "rollouts"), files(begun, "scores"), judges(begun)
    assert len(set(old)) == 1 and old[0]
    assert command("score", begun, "--stage", 0, *ANOTHER).status == 0
    assert written(scores, files(begun, "scores")) == [0, 1, 2]
    assert files(begun, "rollouts") == rollouts
    assert len(set(judges(begun))) == 1 and judges(begun)[0] != old[0]
    assert len(refreshes(begun)) == 1
    scores = files(begun, "scores")
    assert command("score", begun, "--stage", 0).status == 0
    assert files(begun, "scores") == scores  # only once


@pytest.mark.long
def test_train_rescores_the_current_stage_and_leaves_past_ones(run_dir: Path, command: Command):
    """Four updates are made: stage 0 is past, and stage 1 is current with truncated responses."""
    old, past = judges(run_dir, 0), files(run_dir, "scores", 0)
    lines, current = read_metrics(run_dir), files(run_dir, "scores", 1)
    assert judges(run_dir, 1) == old
    cut = [entry["statuses"]["truncated"] for entry in entries(run_dir, 1)]
    assert all(cut)
    assert command("train", run_dir, *ANOTHER).status == 0
    assert files(run_dir, "scores", 0) == past and judges(run_dir, 0) == old
    assert written(current, files(run_dir, "scores", 1)) == [0, 1, 2]
    assert set(judges(run_dir, 1)).isdisjoint(old)
    assert all("truncated" not in entry["statuses"] for entry in entries(run_dir, 1))
    first, second = refreshes(run_dir)
    assert first == next(line for line in lines if line["kind"] == "refresh")
    assert "status/truncated" not in second and second["update"] == 3


@pytest.mark.long
@pytest.mark.parametrize("nth", [1, 3])
def test_after_a_kill_train_rescores_the_rest(run_dir: Path, command: Command, nth: int):
    words = ("score", run_dir, "--stage", 1, *ANOTHER)
    assert mugrpo(*words, at="half a score shard", nth=nth).status == -signal.SIGKILL
    assert state(run_dir).scores == (3, 3)
    scores = files(run_dir, "scores", 1)
    scores = {name: value for name, value in scores.items() if ".tmp." not in name}
    assert command("train", run_dir).status == 0
    assert written(scores, files(run_dir, "scores", 1)) == [0, 1, 2][nth - 1 :]
    assert len(set(judges(run_dir, 1))) == 1
    assert "status/truncated" not in refreshes(run_dir)[1]
