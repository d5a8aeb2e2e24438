"""Rescoring by `mugrpo score --again`. Nothing else is made again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.records import Score, Status
from mugrpo.tasks.embedded import Chain
from tests.faults.harm import stopped
from tests.runs import (
    Command,
    assert_same,
    final_weights,
    read_metrics,
)
from tests.stages.scored import AGAIN, entries, files, refreshes, rewards, written

pytest_plugins = ["tests.run_fixtures"]


@pytest.fixture
def begun(scored_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(scored_run, tmp_path / "run"))


def test_scores_are_made_again_and_no_rollout_is_touched(
    begun: Path, command: Command, stricter: None
):
    rollouts, scores, (old,) = files(begun, "rollouts"), files(begun, "scores"), refreshes(begun)
    assert command("score", begun, *AGAIN).status == 0
    assert files(begun, "rollouts") == rollouts
    assert written(scores, files(begun, "scores")) == [0, 1, 2]
    (new,) = refreshes(begun)
    wrong = old["status/wrong"]
    assert wrong > 0
    # 24 rollouts: every wrong one has -1 instead of 0
    assert new["behavior_reward"] == pytest.approx(old["behavior_reward"] - wrong / 24)
    same = set(old) - {"behavior_reward", "zero_variance_share"}
    assert {key: new[key] for key in same} == {key: old[key] for key in same}


@pytest.mark.long
def test_rescoring_a_stage_that_was_trained_on_keeps_its_updates_and_says_so(
    run_dir: Path, command: Command, stricter: None
):
    weights = final_weights(run_dir, 4)
    updates = [line for line in read_metrics(run_dir) if line["kind"] == "update"]
    ended = command("score", run_dir, *AGAIN)
    assert ended.status == 0
    assert "stage 0: updates made on the old scores stay as they are" in ended.out
    assert final_weights(run_dir, 4) == weights
    assert [line for line in read_metrics(run_dir) if line["kind"] == "update"] == updates
    assert [line["update"] for line in sorted(refreshes(run_dir), key=_update)] == [0, 3]


def _update(line: dict[str, Any]) -> int:
    return int(line["update"])


@pytest.fixture
def stricter_twice(monkeypatch: pytest.MonkeyPatch, stricter: None) -> None:
    """Install the stricter judge, which fails in the third shard."""
    before, calls = Chain.score, iter(range(3))

    def score(task: Chain, answers: Any) -> Any:
        if next(calls, 3) == 2:
            raise RunStopped("the judge broke down")
        return before(task, answers)

    monkeypatch.setattr(Chain, "score", score)


@pytest.mark.long
def test_after_a_stop_each_shard_has_the_scores_of_one_judge(
    begun: Path, command: Command, stricter_twice: None
):
    old = entries(begun)
    stopped(command("score", begun, *AGAIN), "the judge broke down")
    new = entries(begun)
    wrong = [entry["statuses"]["wrong"] for entry in old]
    assert all(wrong)
    sums = [entry["reward_sum"] for entry in old]
    assert [e["reward_sum"] for e in new] == [sums[0] - wrong[0], sums[1] - wrong[1], sums[2]]
    assert command("score", begun, *AGAIN).status == 0
    assert rewards(begun) == sum(sums) - sum(wrong)
    (line,) = refreshes(begun)
    assert line["behavior_reward"] == pytest.approx(rewards(begun) / 24)


@pytest.mark.long
def test_a_judge_that_fails_leaves_a_run_that_goes_on_once_it_is_fixed(
    begun: Path, command: Command, reference: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(_: Chain, answers: Any) -> Any:
        return (Score(Status.ERROR, None, {"reason": f"no {a.problem.id}"}) for a in answers)

    with monkeypatch.context() as patch:
        patch.setattr(Chain, "score", broken)
        scores = files(begun, "scores")
        ended = command("score", begun, *AGAIN)
    assert ended.status == 3 and "could not be judged" in ended.err
    assert f"resume with: mugrpo score {begun} --stage 0" in ended.err
    assert files(begun, "scores") == scores  # still the old ones
    assert command("score", begun, *AGAIN).status == 0
    assert written(scores, files(begun, "scores")) == [0, 1, 2]
    assert command("train", begun).status == 0
    assert_same(begun, reference)
