"""The map of where few stages pay, by plan."""

from __future__ import annotations

from pathlib import Path

import pytest

import staging_map
from mugrpo.extensions.lab.plan.schedules import PARTS, Planned


def plan(stages: int, generate: float) -> Planned:
    parts = {"generate": generate, "optimize": 30.0, "checkpoint": 2.0, "score": 100.0}
    whole = {**dict.fromkeys(PARTS, 0.0), **parts}
    return Planned((4,) * stages, "colocated", 8, 8, [whole], 0.0, 0.0)


def test_seconds_count_generation_updates_checkpoints_and_each_refresh():
    assert staging_map.seconds(plan(3, 10.0), 5.0) == 10 + 30 + 2 + 3 * 5


def test_the_dearer_a_refresh_the_more_few_stages_save(tmp_path: Path):
    rows = staging_map.main(["--tiny", "--output", str(tmp_path / "map.svg")])
    ratios = [row["ratio"] for row in rows]
    assert [row["refresh"] for row in rows] == ["1 s", "10 s", "60 s"]
    assert ratios == sorted(ratios, reverse=True) and 4 / 1024 < ratios[-1] < ratios[0] < 1
    assert (tmp_path / "map.svg").read_text().startswith("<svg")


def test_a_refresh_that_takes_forever_leaves_the_ratio_of_refreshes():
    few, fresh = plan(4, 10.0), plan(1024, 20.0)
    ratio = staging_map.seconds(few, 1e12) / staging_map.seconds(fresh, 1e12)
    assert ratio == pytest.approx(4 / 1024)
