"""What a response's length costs it: DAPO's soft overlong punishment, by hand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mugrpo.config.run import RewardOptions
from mugrpo.disk.records import Rollout, Score, Status
from mugrpo.rollouts.score import overlong_penalty
from mugrpo.rollouts.selection import correctness_varies
from tests.rollouts.test_score import Fixed, Folder, failure, response
from tests.runs import Command, final_weights, read_metrics

pytest_plugins = ["tests.run_fixtures"]

SHARE = 0.4  # of 10 tokens: responses of 6 are free, those of 10 lose 1


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def long(length: int, sample: int = 0, *, cut: bool = False) -> Rollout:
    """Return a response of `length` tokens, including the end-of-sequence token unless `cut`."""
    result = response(0, sample, "5" * (length if cut else length - 1), cut=cut)
    assert len(result.response_ids) == length
    return result


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(1, 0.0), (5, 0.0), (6, 0.0), (7, -0.25), (8, -0.5), (9, -0.75), (10, -1.0)],
)
def test_the_last_four_of_ten_tokens_cost_a_quarter_each(length: int, penalty: float):
    assert overlong_penalty(length, 10, 4) == penalty


def test_a_buffer_may_be_all_tokens_or_a_number_of_them_that_is_not_whole():
    assert [overlong_penalty(n, 8, 8) for n in (1, 4, 8)] == [-0.125, -0.5, -1.0]
    # 48 tokens, a fifth of them: 9.6; 38.4 are free
    assert overlong_penalty(38, 48, 9.6) == 0.0
    assert overlong_penalty(39, 48, 9.6) == pytest.approx(-0.6 / 9.6)
    assert overlong_penalty(48, 48, 9.6) == pytest.approx(-1.0)


def test_the_penalty_lowers_the_reward_is_reported_and_keeps_the_status(folder: Folder):
    folder.write(*(long(n, i) for i, n in enumerate((6, 8, 8, 9))))
    right, wrong = Score(Status.RIGHT, 1.0, {"a": 5}), Score(Status.WRONG, 0.25, {"a": 7})
    assert folder.score(Fixed(right, right, wrong, wrong), overlong_buffer=SHARE) == [
        right,
        Score(Status.RIGHT, 0.5, {"a": 5, "overlong": -0.5}),
        Score(Status.WRONG, -0.25, {"a": 7, "overlong": -0.5}),
        Score(Status.WRONG, -0.5, {"a": 7, "overlong": -0.75}),
    ]
    entry = folder.scores.entry(0)
    assert entry["statuses"] == {"right": 2, "wrong": 2}
    assert (entry["reward_sum"], entry["rewarded"]) == (1 + 0.5 - 0.25 - 0.5, 4)


@pytest.mark.parametrize("truncated", ["zero", "masked"])
def test_a_cut_response_is_of_the_largest_length_and_loses_1(folder: Folder, truncated: str):
    folder.write(long(10, cut=True))
    expected = Score(Status.TRUNCATED, -1.0, {"overlong": -1.0})
    assert folder.score(Fixed(), truncated=truncated, overlong_buffer=SHARE) == [expected]


def test_a_cut_response_that_is_scored_can_be_right_and_still_loses_1(folder: Folder):
    folder.write(long(10, cut=True))
    assert folder.score(
        Fixed(Score(Status.RIGHT, 1.0)), truncated="scored", overlong_buffer=SHARE
    ) == [Score(Status.RIGHT, 0.0, {"overlong": -1.0})]


def test_responses_without_a_reward_have_no_penalty(folder: Folder):
    verdicts = [failure("boom"), failure("slow", Status.TIMEOUT), Score(Status.SKIPPED, None)]
    folder.write(*(long(9, i) for i in range(3)))
    assert folder.score(Fixed(*verdicts), overlong_buffer=SHARE, failure_limit=1.0) == verdicts


def test_without_a_buffer_length_costs_nothing(folder: Folder):
    folder.write(long(9), long(10, 1, cut=True))
    right = Score(Status.RIGHT, 1.0)
    assert folder.score(Fixed(right)) == [right, Score(Status.TRUNCATED, 0.0)]


def test_right_responses_of_different_lengths_vary_in_reward_and_not_in_correctness(
    folder: Folder,
):
    folder.write(long(6, 0), long(8, 1))
    scores = folder.score(Fixed(*[Score(Status.RIGHT, 1.0)] * 2), overlong_buffer=SHARE)
    assert folder.scores.entry(0)["zero_variance_groups"] == 0
    statuses = [score.status for score in scores]
    assert not correctness_varies(statuses, RewardOptions(overlong_buffer=SHARE))


# ---- in a run ----


def rows(run_dir: Path, stage: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The rollouts of a stage and their scores."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for kind in ("rollouts", "scores"):
        paths = sorted((run_dir / f"stages/{stage:03d}/{kind}").glob("*.parquet"))
        tables[kind] = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return list(zip(tables["rollouts"], tables["scores"], strict=True))


def test_a_forced_change_rescores_the_current_stage_and_no_other(
    run_dir: Path, command: Command, reference: Path
):
    """Half of 8 tokens: a response of n loses (n - 4) / 4 of its reward."""
    past = {p: p.read_bytes() for p in run_dir.glob("stages/000/scores/*")}
    words = ("--rewards.overlong_buffer", "0.5", "--force")
    assert command("train", run_dir, *words).status == 0
    assert {p: p.read_bytes() for p in past} == past
    for (_, old), (rollout, new) in zip(rows(reference, 1), rows(run_dir, 1), strict=True):
        cost = max(0, len(rollout["response_ids"]) - 4) / 4
        assert new["status"] == old["status"]
        assert new["reward"] == old["reward"] - cost
    assert final_weights(run_dir) != final_weights(reference)


@pytest.mark.parametrize("tokens", [9, 48])
def test_another_max_new_tokens_is_another_judge(run_dir: Path, command: Command, tokens: int):
    """The penalty depends on max_new_tokens. Without a buffer the new scores are the same."""
    before = rows(run_dir, 1)
    shards = sorted(run_dir.glob("stages/001/scores/*.parquet"))
    written = [path.stat().st_mtime_ns for path in shards]
    words = ("--rollouts.max_new_tokens", tokens, "--force")
    assert command("score", run_dir, "--stage", 1, *words).status == 0
    assert all(p.stat().st_mtime_ns > old for p, old in zip(shards, written, strict=True))
    assert rows(run_dir, 1) == before


def test_in_an_evaluation_the_reward_is_lower_and_the_accuracy_the_same(
    run_dir: Path, tmp_path: Path, command: Command
):
    """Evaluate the same checkpoint with and without the penalty."""
    lines = {}
    for share in ("0", "0.5"):
        folder = Path(shutil.copytree(run_dir, tmp_path / share))
        words = ("--update", 2, "--rewards.overlong_buffer", share, "--force")
        assert command("evaluate", folder, *words).status == 0
        metrics = {(line["kind"], line["update"]): line for line in read_metrics(folder)}
        lines[share] = metrics["evaluation", 2]
        scores = folder / "evaluations/update-000002"
        lengths = [
            len(ids)
            for ids in pq.read_table(scores / "rollouts/shard-00000.parquet")["response_ids"]
        ]
    cost = sum(max(0, n - 4) / 4 for n in lengths) / len(lengths)
    assert cost > 0
    assert lines["0.5"].pop("reward") == pytest.approx(lines["0"].pop("reward") - cost)
    assert lines["0.5"] == lines["0"]


# ---- bounds ----


def test_nothing_loses_more_than_1(folder: Folder):
    folder.write(long(14))
    (score,) = folder.score(Fixed(Score(Status.RIGHT, 1.0)), overlong_buffer=SHARE)
    assert score == Score(Status.RIGHT, 0.0, {"overlong": -1.0})
