"""The charts of each reward and of what reward functions log."""

from __future__ import annotations

from pathlib import Path

from tests.report.parsed import layer, report
from tests.report.synthetic import refresh, update, write_config, write_metrics

FIRST = {"rewards/short/mean": 0.25, "rewards/numeric/mean": 0.5, "logged/words": 12.0}
SECOND = {"rewards/short/mean": 0.75, "rewards/numeric/mean": 1.0, "logged/words": 6.0}


def run_at(root: Path) -> Path:
    write_config(root)
    refreshes = [refresh(0, 0, **FIRST), refresh(4, 1, **SECOND)]
    write_metrics(root, [refreshes[0], refreshes[1], update(8)])
    return root


def test_a_single_runs_rewards_share_a_chart_and_each_metric_has_its_own(tmp_path):
    charts = report(run_at(tmp_path / "run")).charts()
    rewards = {row["series"]: row["y"] for row in layer(charts["Rewards"], "lines")}
    assert rewards == {"short": [0.25, 0.25, 0.75, 0.75], "numeric": [0.5, 0.5, 1, 1]}
    (words,) = layer(charts["Logged words"], "lines")
    assert (words["x"], words["y"]) == ([0, 4, 4, 8], [12, 12, 6, 6])


def test_several_runs_share_the_chart_of_each_reward(tmp_path):
    charts = report(run_at(tmp_path / "a"), run_at(tmp_path / "b")).charts()
    assert "Rewards" not in charts
    for name in ("Rewards short", "Rewards numeric", "Logged words"):
        assert {row["run"] for row in layer(charts[name], "lines")} == {"a", "b"}
