"""Rescoring, by `mugrpo score --again` or for another judge. Nothing else is made again."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.records import Score, Status
from mugrpo.tasks.chain import Chain
from tests.faults.harm import edited, refused, resume_words, stopped
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
    """A run that was killed before its first update. Tests copy it."""
    run_dir = tmp_path_factory.mktemp("scored") / "run"
    killed(run_dir, "gradient", 1)
    assert state(run_dir).scores == (3, 0)
    return run_dir


@pytest.fixture
def begun(scored_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(scored_run, tmp_path / "run"))


@pytest.fixture
def stricter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install another judge, which gives a wrong answer -1 instead of 0."""
    before = Chain.score

    def score(task: Chain, answers: Any) -> Any:
        for given in before(task, answers):
            yield Score(Status.WRONG, -1.0) if given.status is Status.WRONG else given

    monkeypatch.setattr(Chain, "score", score)


Files = dict[str, tuple[int, bytes]]


def files(run_dir: Path, kind: str, stage: int = 0) -> Files:
    """Return the modification time and the bytes of each of a stage's files of `kind`."""
    found = sorted((run_dir / "stages" / f"{stage:03d}" / kind).iterdir())
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def written(before: Files, after: Files) -> list[int]:
    """Return the numbers of the shards that were written in between, even with the same bytes."""
    assert before.keys() == after.keys()
    names = sorted(name for name in before if name.startswith("shard-"))
    return [n for n, name in enumerate(names) if after[name][0] > before[name][0]]


def entries(run_dir: Path, stage: int = 0) -> list[dict[str, Any]]:
    """Return the manifest's entries for a stage's shards of scores, in order."""
    path = run_dir / "stages" / f"{stage:03d}" / "scores" / "manifest.json"
    shards = json.loads(path.read_text())["shards"]
    return [shards[number] for number in sorted(shards)]


def judges(run_dir: Path, stage: int = 0) -> list[str]:
    return [entry["judge"] for entry in entries(run_dir, stage)]


def refreshes(run_dir: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(run_dir) if line["kind"] == "refresh"]


def rewards(run_dir: Path) -> float:
    """Return the sum of the rewards by stage 0's manifest of scores."""
    return sum(entry["reward_sum"] for entry in entries(run_dir))


def test_without_again_existing_scores_stay(begun: Path, command: Command, stricter: None):
    scores, lines = files(begun, "scores"), read_metrics(begun)
    assert command("score", begun, "--stage", 0).status == 0
    assert files(begun, "scores") == scores
    assert read_metrics(begun) == lines


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


def test_the_new_refresh_line_takes_the_place_of_the_old_one(
    run_dir: Path, command: Command, stricter: None
):
    before = read_metrics(run_dir)
    assert command("score", run_dir, *AGAIN).status == 0
    after = read_metrics(run_dir)
    assert [(line["kind"], line["update"]) for line in after] == [
        (line["kind"], line["update"]) for line in before
    ]
    changed = [new for old, new in zip(before, after, strict=True) if new != old]
    assert changed == [line for line in refreshes(run_dir) if line["update"] == 0]


def _update(line: dict[str, Any]) -> int:
    return int(line["update"])


@pytest.mark.parametrize(
    ("place", "nth", "made"),
    [
        ("scoring", 1, []),
        ("half a score shard", 1, []),
        ("half a score shard", 2, [0]),
        ("scoring", 20, [0, 1]),
        ("after a publish", 4, [0, 1]),  # a shard and its manifest are two
    ],
)
def test_after_a_kill_the_rest_keeps_its_scores_and_another_again_makes_all(
    begun: Path, command: Command, reference: Path, place: str, nth: int, made: list[int]
):
    rollouts, scores, lines = files(begun, "rollouts"), files(begun, "scores"), read_metrics(begun)
    assert mugrpo("score", begun, *AGAIN, at=place, nth=nth).status == -signal.SIGKILL
    assert state(begun).scores == (3, 0) and read_metrics(begun) == lines
    left = {n: v for n, v in files(begun, "scores").items() if ".tmp." not in n}
    assert written(scores, left) == made
    assert command("score", begun, *AGAIN).status == 0
    assert written(left, files(begun, "scores")) == [0, 1, 2]
    assert len(refreshes(begun)) == 1
    assert files(begun, "rollouts") == rollouts
    assert command("train", begun).status == 0
    assert_same(begun, reference)


def test_after_a_kill_between_a_shard_and_its_manifest_another_again_makes_all(
    begun: Path, command: Command, reference: Path
):
    place = "score shard without manifest"
    assert mugrpo("score", begun, *AGAIN, at=place, nth=3).status == -signal.SIGKILL
    assert state(begun).scores == (3, 0)
    assert command("score", begun, *AGAIN).status == 0
    assert command("train", begun).status == 0
    assert_same(begun, reference)


@pytest.fixture
def stricter_twice(monkeypatch: pytest.MonkeyPatch, stricter: None) -> None:
    """Install the stricter judge, which fails in the third shard."""
    before, calls = Chain.score, iter(range(3))

    def score(task: Chain, answers: Any) -> Any:
        if next(calls, 3) == 2:
            raise RunStopped("the judge broke down")
        return before(task, answers)

    monkeypatch.setattr(Chain, "score", score)


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


def test_after_a_stop_the_message_names_the_command_that_does_the_rest(
    begun: Path, command: Command, stricter_twice: None
):
    ended = command("score", begun, *AGAIN)
    stopped(ended, "the judge broke down")
    before = files(begun, "scores")
    assert command(*resume_words(ended)).status == 0
    assert 2 in written(before, files(begun, "scores"))


def test_after_a_stop_training_writes_the_refresh_line_of_the_scores_on_disk(
    begun: Path, command: Command, stricter_twice: None
):
    stopped(command("score", begun, *AGAIN), "the judge broke down")
    assert command("train", begun).status == 0
    line = next(line for line in refreshes(begun) if line["update"] == 0)
    assert line["behavior_reward"] == pytest.approx(rewards(begun) / 24)


# ---- another judge ----

ANOTHER = ("--rewards.truncated", "scored", "--force")


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


def test_only_the_shards_of_another_judge_are_made_again(begun: Path, command: Command):
    path, own = begun / "stages/000/scores/manifest.json", judges(begun)
    shards = json.loads(path.read_text())["shards"]
    shards["1"]["judge"] = "another"
    del shards["2"]["judge"]  # as in a run begun before scores named a judge
    edited(path, shards=shards)
    scores = files(begun, "scores")
    assert command("score", begun, "--stage", 0).status == 0
    assert written(scores, files(begun, "scores")) == [1]
    assert [entry.get("judge") for entry in entries(begun)] == [*own[:2], None]


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


def test_score_leaves_a_past_stage_unless_again_is_given(run_dir: Path, command: Command):
    old, scores = judges(run_dir), files(run_dir, "scores")
    ended = command("score", run_dir, "--stage", 0, *ANOTHER)
    assert ended.status == 0 and files(run_dir, "scores") == scores
    assert command("score", run_dir, *AGAIN).status == 0
    assert written(scores, files(run_dir, "scores")) == [0, 1, 2]
    assert set(judges(run_dir)).isdisjoint(old)


def test_optimize_alone_does_not_train_on_the_scores_of_two_judges(begun: Path, command: Command):
    """Another judge is killed after it has scored all shards but the last."""
    words = ("score", begun, "--stage", 0, *ANOTHER)
    assert mugrpo(*words, at="half a score shard", nth=3).status == -signal.SIGKILL
    assert len(set(judges(begun))) == 2
    refused(command("optimize", begun, "--stage", 0), "mugrpo score ")


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


def test_after_a_kill_before_the_new_refresh_line_train_writes_it(run_dir: Path, command: Command):
    words = ("score", run_dir, "--stage", 1, *ANOTHER)
    # The metrics file is published when it is opened, and with the new line.
    assert mugrpo(*words, at="cut metrics", nth=2).status == -signal.SIGKILL
    assert all("truncated" not in entry["statuses"] for entry in entries(run_dir, 1))
    assert command("train", run_dir).status == 0
    assert "status/truncated" not in refreshes(run_dir)[1]


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


def test_again_before_anything_is_generated_names_the_command_to_run_first(
    tmp_path: Path, command: Command
):
    words = [write_config(tmp_path), "--run-dir", tmp_path / "run", *AGAIN]
    refused(command("score", *words), "stage 0 has 0 of 3 shards of rollouts", "mugrpo generate ")


def test_only_score_accepts_again(tmp_path: Path, command: Command):
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
