"""Problems drawn by difficulty: from stored scores, and exactly the same after a kill."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mugrpo.report.read import read_runs
from mugrpo.tasks.chain import Chain, ChainOptions
from tests.runs import assert_same, finished, killed, mugrpo, read_metrics, shard_path, train

pytest_plugins = ["tests.run_fixtures"]

# Stages of 6 groups of 4: of 8 problems, the second stage knows the rates of six.
BAND = (
    *("--task.train_problems", "8", "--difficulty.name", "band"),
    *("--difficulty.low", "0.2", "--difficulty.high", "0.8"),
)


def draw(run_dir: Path, stage: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.read_table(shard_path(run_dir, stage, 0, "draw")).to_pylist()
    return rows


def rates_of(run_dir: Path, stage: int) -> dict[str, float]:
    """Return the share of right responses to each problem of a stage, from its files."""
    right: dict[str, list[bool]] = defaultdict(list)
    for shard in range(3):
        both = (pq.read_table(shard_path(run_dir, stage, shard, k)) for k in ("rollouts", "scores"))
        rollouts, scores = (table.to_pylist() for table in both)
        for rollout, score in zip(rollouts, scores, strict=True):
            right[rollout["problem_id"]].append(score["status"] == "right")
    return {problem: sum(some) / len(some) for problem, some in right.items()}


@pytest.fixture(scope="module")
def banded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("banded") / "run"
    finished(run_dir, *BAND)
    return run_dir


def test_a_stage_draws_what_the_stored_scores_of_the_stage_before_say(banded: Path):
    problems = [p.id for p in Chain(ChainOptions(train_problems=8)).train_problems()]
    assert draw(banded, 0) == [{"rate": None, "excluded": False}] * 8
    rates = rates_of(banded, 0)
    expected = [
        {"rate": rate, "excluded": rate is not None and not 0.2 <= rate <= 0.8}
        for rate in map(rates.get, problems)
    ]
    assert draw(banded, 1) == expected
    excluded = {p for p, row in zip(problems, expected, strict=True) if row["excluded"]}
    drawn = rates_of(banded, 1)
    assert excluded and not excluded & drawn.keys()


def test_metrics_plan_and_report_say_what_was_drawn(banded: Path):
    rates, excluded = rates_of(banded, 0), sum(bool(row["excluded"]) for row in draw(banded, 1))
    rollouts = [
        row["problem_id"]
        for shard in range(3)
        for row in pq.read_table(shard_path(banded, 1, shard)).to_pylist()
        if row["problem_id"] in rates
    ]
    mean = sum(rates[problem] for problem in rollouts) / len(rollouts)
    first, second = (line for line in read_metrics(banded) if line["kind"] == "refresh")
    assert (first["problems_excluded"], first["drawn_solve_rate"]) == (0, None)
    assert second["problems_excluded"] == excluded
    assert second["drawn_solve_rate"] == pytest.approx(mean)
    manifest = json.loads(shard_path(banded, 1, 0, "plan").with_name("manifest.json").read_text())
    assert manifest["shards"]["0"]["problems_excluded"] == excluded
    (data,) = read_runs([banded])
    assert data.refreshes[1]["problems_excluded"] == excluded


@pytest.mark.parametrize(
    ("place", "nth"),
    [
        pytest.param("stage", 2, marks=pytest.mark.long),
        ("engine batch", 8),
        pytest.param("gradient", 5, marks=pytest.mark.long),
    ],
)
def test_a_killed_run_draws_the_same_problems(banded: Path, tmp_path: Path, place: str, nth: int):
    killed(tmp_path / "run", place, nth, *BAND)
    finished(tmp_path / "run", *BAND)
    assert_same(tmp_path / "run", banded)


@pytest.mark.long
def test_a_lost_draw_is_made_again_from_the_scores(banded: Path, tmp_path: Path):
    killed(tmp_path / "run", "gradient", 5, *BAND)
    shard_path(tmp_path / "run", 1, 0, "draw").unlink()
    assert mugrpo("repair", tmp_path / "run").status == 0
    finished(tmp_path / "run", *BAND)
    assert draw(tmp_path / "run", 1) == draw(banded, 1)
    assert rates_of(tmp_path / "run", 1) == rates_of(banded, 1)


@pytest.mark.long
def test_too_few_problems_left_for_an_update_means_all_are_drawn(tmp_path: Path):
    """No rate is exactly 0.123, so nothing that was drawn before is left; two problems are new."""
    words = ("--task.train_problems", "6", "--difficulty.name", "band")
    ended = finished(
        tmp_path / "run", *words, "--difficulty.low", "0.123", "--difficulty.high", "0.123"
    )
    assert "stage 1: difficulty leaves 0 of 6 problems, fewer than the 2" in ended.out
    assert not any(row["excluded"] for row in draw(tmp_path / "run", 1))


@pytest.mark.long
def test_another_band_needs_another_run(banded: Path, tmp_path: Path):
    killed(tmp_path / "run", "gradient", 1, *BAND)
    ended = train(tmp_path / "run", *BAND, "--difficulty.high", "0.9", "--force")
    assert ended.status != 0 and "The shards on disk depend on difficulty.high" in ended.err
