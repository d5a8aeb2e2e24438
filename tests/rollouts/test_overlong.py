"""What a response's length costs it: DAPO's soft overlong punishment, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mugrpo.disk.records import Rollout, Score, Status
from mugrpo.rollouts.score import overlong_penalty
from mugrpo.rollouts.statistics import accuracy
from tests.cases import table
from tests.rollouts.scoring import RIGHT, SKIPPED, WRONG, Fixed, Folder, failure, response
from tests.runs import Command

pytest_plugins = ["tests.run_fixtures"]

SHARE = 0.4  # of 10 tokens: responses of 6 are free, those of 10 lose 1


def long(length: int, sample: int = 0, *, cut: bool = False) -> Rollout:
    """Return a response of `length` tokens, including the end-of-sequence token unless `cut`."""
    result = response(0, sample, "5" * (length if cut else length - 1), cut=cut)
    assert len(result.response_ids) == length
    return result


@table(
    ("length", "penalty"),
    [(1, 0.0), (5, 0.0), (6, 0.0), (7, -0.25), (8, -0.5), (9, -0.75), (10, -1.0)],
)
def test_the_last_four_of_ten_tokens_cost_a_quarter_each(length: int, penalty: float):
    assert overlong_penalty(length, 10, 4) == penalty


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


def test_responses_without_a_reward_have_no_penalty(folder: Folder):
    verdicts = [failure("boom"), SKIPPED]
    folder.write(*(long(9, i) for i in range(2)))
    assert folder.score(Fixed(*verdicts), overlong_buffer=SHARE, failure_limit=1.0) == verdicts


def test_in_an_evaluation_the_reward_is_lower_and_the_accuracy_the_same(folder: Folder):
    folder.write(*(long(n, i) for i, n in enumerate((6, 8, 9))), long(10, 3, cut=True))
    lines = []
    for share in (0.0, SHARE):
        scores = folder.score(Fixed(RIGHT, RIGHT, WRONG), overlong_buffer=share)
        verdicts = [{"status": score.status, "reward": score.reward} for score in scores]
        lines.append(accuracy(verdicts, 1))
    without, penalized = lines
    assert without.pop("reward") == 2 / 4
    assert penalized.pop("reward") == (2 - 0.5 - 0.75 - 1) / 4
    assert penalized == without and without["accuracy"] == 2 / 4


# ---- in a run ----


def rows(run_dir: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the rollouts of stage 1 and their scores."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for kind in ("rollouts", "scores"):
        paths = sorted((run_dir / "stages/001" / kind).glob("*.parquet"))
        tables[kind] = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return list(zip(tables["rollouts"], tables["scores"], strict=True))


def test_a_runs_penalty_is_of_its_own_buffer_and_max_new_tokens(run_dir: Path, command: Command):
    """Half of 8 tokens: a response of n loses (n - 4) / 4 of its reward."""
    before = rows(run_dir)
    words = ("--rewards.overlong_buffer", "0.5", "--force")
    assert command("score", run_dir, "--stage", 1, *words).status == 0
    costs = []
    for (_, old), (rollout, new) in zip(before, rows(run_dir), strict=True):
        costs.append(max(0, len(rollout["response_ids"]) - 4) / 4)
        assert new["status"] == old["status"]
        assert new["reward"] == old["reward"] - costs[-1]
    assert any(costs)


# ---- bounds ----
