"""Scores are made again by `mugrpo score --again` or for another judge. No rollout is touched."""

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.shards import ShardSet
from tests.runs import Command, mugrpo, read_metrics, state

ANOTHER = ("--rewards.truncated", "scored", "--force")

Files = dict[str, tuple[int, bytes]]


def files(run_dir: Path, kind: str, stage: int = 0) -> Files:
    """Return the modification time and the bytes of each of a stage's files of `kind`."""
    found = sorted((run_dir / "stages" / f"{stage:03d}" / kind).iterdir())
    found = [path for path in found if not re.search(r"\.(tmp\.|claim-)", path.name)]
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def written(before: Files, after: Files) -> list[int]:
    """Return the numbers of the shards that were written in between, even with the same bytes."""
    assert before.keys() == after.keys()
    names = sorted(name for name in before if name.endswith(".parquet"))
    return [n for n, name in enumerate(names) if after[name][0] > before[name][0]]


def judges(run_dir: Path, stage: int = 0) -> set[str]:
    """Return the judges of a stage's shards of scores."""
    scores = ShardSet(run_dir / "stages" / f"{stage:03d}" / "scores", "scores")
    return {entry["judge"] for entry in scores.entries()}


def refreshes(run_dir: Path) -> list[dict[str, Any]]:
    """Return the last refresh line of each update."""
    lines = {line["update"]: line for line in read_metrics(run_dir) if line["kind"] == "refresh"}
    return list(lines.values())


@pytest.fixture
def begun(scored_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(scored_run, tmp_path / "run"))


def test_scores_are_made_again_and_no_rollout_is_touched(begun, command, stricter):
    rollouts, scores, (old,) = files(begun, "rollouts"), files(begun, "scores"), refreshes(begun)
    assert command("score", begun, "--stage", 0, "--again").status == 0
    assert files(begun, "rollouts") == rollouts
    assert written(scores, files(begun, "scores")) == [0, 1, 2]
    (new,) = refreshes(begun)
    wrong = old["status/wrong"]
    assert wrong > 0
    # 24 rollouts: every wrong one has -1 instead of 0
    assert new["behavior_reward"] == pytest.approx(old["behavior_reward"] - wrong / 24)
    same = set(old) - {"behavior_reward", "zero_variance_share"}
    assert {key: new[key] for key in same} == {key: old[key] for key in same}


def test_scores_of_another_judge_are_made_again_once(begun: Path, command: Command):
    rollouts, scores, old = files(begun, "rollouts"), files(begun, "scores"), judges(begun)
    assert len(old) == 1 and all(old)
    assert command("score", begun, "--stage", 0, *ANOTHER).status == 0
    assert written(scores, files(begun, "scores")) == [0, 1, 2]
    assert files(begun, "rollouts") == rollouts
    assert len(judges(begun)) == 1 and judges(begun).isdisjoint(old)
    scores = files(begun, "scores")
    assert command("score", begun, "--stage", 0).status == 0
    assert files(begun, "scores") == scores


@pytest.mark.long
def test_after_a_kill_train_rescores_the_rest_of_the_current_stage(run_dir: Path, command: Command):
    """Four updates are made: stage 0 is past, and stage 1 is current with truncated responses."""
    past, old = files(run_dir, "scores", 0), judges(run_dir)
    assert refreshes(run_dir)[1]["status/truncated"] > 0
    words = ("score", run_dir, "--stage", 1, *ANOTHER)
    assert mugrpo(*words, at="half a score shard", nth=2).status == -signal.SIGKILL
    assert state(run_dir).scores == (3, 3)
    scores = files(run_dir, "scores", 1)
    assert command("train", run_dir).status == 0
    assert written(scores, files(run_dir, "scores", 1)) == [1, 2]
    assert len(judges(run_dir, 1)) == 1 and judges(run_dir, 1).isdisjoint(old)
    assert files(run_dir, "scores", 0) == past
    assert "status/truncated" not in refreshes(run_dir)[1]
