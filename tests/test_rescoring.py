"""`mugrpo score RUN --stage N --again`: scores are made anew, and nothing else is."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from mugrpo.records import Score, Status
from mugrpo.tasks.chain import Chain
from tests.faults.harm import refused
from tests.runs import (
    Command,
    assert_same,
    final_weights,
    finished,
    killed,
    mugrpo,
    read_metrics,
    state,
    write_config,
)

pytest_plugins = ["tests.run_fixtures"]

AGAIN = ("--stage", 0, "--again")


@pytest.fixture(scope="module")
def scored_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed before its first update: to be copied."""
    run_dir = tmp_path_factory.mktemp("scored") / "run"
    killed(run_dir, "gradient", 1)
    assert state(run_dir).scores == (3, 0)
    return run_dir


@pytest.fixture
def begun(scored_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(scored_run, tmp_path / "run"))


@pytest.fixture
def stricter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another judge: a wrong answer gets -1 instead of 0."""
    before = Chain.score

    def score(task: Chain, answers: Any) -> Any:
        for given in before(task, answers):
            yield Score(Status.WRONG, -1.0) if given.status is Status.WRONG else given

    monkeypatch.setattr(Chain, "score", score)


def files(run_dir: Path, kind: str) -> dict[str, tuple[int, bytes]]:
    """When it was written and the bytes, of what stage 0 has of `kind`."""
    found = sorted((run_dir / "stages" / "000" / kind).iterdir())
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def refreshes(run_dir: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(run_dir) if line["kind"] == "refresh"]


def rewards(run_dir: Path) -> float:
    """The sum of the rewards that stage 0's manifest of scores tells."""
    manifest = json.loads((run_dir / "stages/000/scores/manifest.json").read_text())
    return sum(entry["reward_sum"] for entry in manifest["shards"].values())


def test_without_again_what_is_scored_stays(begun: Path, command: Command, stricter: None):
    scores, lines = files(begun, "scores"), read_metrics(begun)
    assert command("score", begun, "--stage", 0).status == 0
    assert files(begun, "scores") == scores
    assert read_metrics(begun) == lines


def test_scores_are_made_anew_and_no_rollout_is_touched(
    begun: Path, command: Command, stricter: None
):
    rollouts, scores, (old,) = files(begun, "rollouts"), files(begun, "scores"), refreshes(begun)
    assert command("score", begun, *AGAIN).status == 0
    assert files(begun, "rollouts") == rollouts
    made = files(begun, "scores")
    assert made.keys() == scores.keys()
    assert all(made[name][0] > scores[name][0] for name in made)
    (new,) = refreshes(begun)
    wrong = old["status/wrong"]
    assert wrong > 0
    # 24 rollouts: every wrong one has -1 instead of 0
    assert new["behavior_reward"] == pytest.approx(old["behavior_reward"] - wrong / 24)
    same = set(old) - {"behavior_reward", "zero_variance_share"}
    assert {key: new[key] for key in same} == {key: old[key] for key in same}


def test_the_same_judge_gives_the_same_scores_and_the_same_run(
    begun: Path, command: Command, reference: Path
):
    before = {name: data for name, (_, data) in files(begun, "scores").items() if "shard" in name}
    assert command("score", begun, *AGAIN).status == 0
    after = {name: data for name, (_, data) in files(begun, "scores").items() if "shard" in name}
    assert after == before
    assert command("train", begun).status == 0
    assert_same(begun, reference)


def test_training_goes_on_with_the_new_scores(
    begun: Path, command: Command, reference: Path, stricter: None
):
    assert command("score", begun, *AGAIN).status == 0
    sum_of_rewards = rewards(begun)
    assert command("train", begun).status == 0
    updates = [line for line in read_metrics(begun) if line["kind"] == "update"]
    assert [line["behavior_reward"] for line in updates[:3]] == [sum_of_rewards / 24] * 3
    assert sum(line["batch_reward"] for line in updates[:3]) == pytest.approx(sum_of_rewards / 8)
    assert len(refreshes(begun)) == 2


def test_of_a_stage_that_is_trained_on_the_old_updates_stay_and_that_is_said(
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


@pytest.mark.xfail(strict=True, reason="the new line is appended behind all others")
def test_the_new_refresh_line_stands_where_the_old_one_stood(
    run_dir: Path, command: Command, stricter: None
):
    before = [(line["kind"], line["update"]) for line in read_metrics(run_dir)]
    assert command("score", run_dir, *AGAIN).status == 0
    assert [(line["kind"], line["update"]) for line in read_metrics(run_dir)] == before


def _update(line: dict[str, Any]) -> int:
    return int(line["update"])


@pytest.mark.parametrize(
    ("place", "nth", "scores"),
    [
        ("scoring", 1, 0),
        ("half a score shard", 1, 0),
        ("scoring", 20, 2),
        ("score shard without manifest", 3, 2),
    ],
)
def test_killed_in_the_middle_the_rest_is_scored_by_whatever_goes_on(
    begun: Path, command: Command, reference: Path, place: str, nth: int, scores: int
):
    rollouts = files(begun, "rollouts")
    assert mugrpo("score", begun, *AGAIN, at=place, nth=nth).status == -signal.SIGKILL
    assert state(begun).scores == (scores, 0) and refreshes(begun) == []
    assert command("score", begun, "--stage", 0).status == 0
    assert state(begun).scores == (3, 0) and len(refreshes(begun)) == 1
    assert files(begun, "rollouts") == rollouts
    assert command("train", begun).status == 0
    assert_same(begun, reference)


@pytest.mark.xfail(
    strict=True, reason="scores are forgotten before their refresh line is: it is never replaced"
)
@pytest.mark.parametrize("nth", [1, 3])
def test_killed_while_scores_are_forgotten_the_refresh_line_is_of_the_scores_all_the_same(
    begun: Path, command: Command, stricter: None, nth: int
):
    # The first three publishes are of the manifest, without shard 0, 1 and 2.
    ended = mugrpo("score", begun, *AGAIN, at="after a publish", nth=nth)
    assert ended.status == -signal.SIGKILL
    assert state(begun).scores == (3 - nth, 0)
    assert command("score", begun, "--stage", 0).status == 0
    (line,) = refreshes(begun)
    assert line["behavior_reward"] == pytest.approx(rewards(begun) / 24)


def test_a_judge_that_fails_leaves_a_run_that_goes_on_once_it_is_mended(
    begun: Path, command: Command, reference: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(_: Chain, answers: Any) -> Any:
        return (Score(Status.ERROR, None, {"reason": f"no {a.problem.id}"}) for a in answers)

    with monkeypatch.context() as patch:
        patch.setattr(Chain, "score", broken)
        ended = command("score", begun, *AGAIN)
    assert ended.status == 3 and "could not be judged" in ended.err
    assert f"resume with: mugrpo score {begun} --stage 0" in ended.err
    assert state(begun).scores == (0, 0)
    assert command("score", begun, "--stage", 0).status == 0
    assert command("train", begun).status == 0
    assert_same(begun, reference)


def test_again_before_anything_is_generated_names_the_command_to_run_first(
    tmp_path: Path, command: Command
):
    words = [write_config(tmp_path), "--run-dir", tmp_path / "run", *AGAIN]
    refused(command("score", *words), "stage 0 has 0 of 3 shards of rollouts", "mugrpo generate ")


def test_only_score_takes_again(tmp_path: Path, command: Command):
    words = [write_config(tmp_path), "--run-dir", tmp_path / "run"]
    refused(command("generate", *words, "--again"), "--again")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_can_be_scored_again_and_stays_finished(
    tmp_path: Path, command: Command, stricter: None
):
    run_dir = tmp_path / "run"
    finished(run_dir)
    weights = final_weights(run_dir)
    assert command("score", run_dir, *AGAIN).status == 0
    ended = command("train", run_dir)
    assert ended.status == 0 and "refreshes   2 made" in ended.out
    assert final_weights(run_dir) == weights
