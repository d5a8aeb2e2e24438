"""A run's plan beside what it took, on numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from mugrpo.disk.run_dir import RunDir
from mugrpo.report.planned import compared, in_words
from mugrpo.report.read import read_runs
from tests.report.parsed import report
from tests.report.synthetic import timed_run, write_plan


def both(root: Path) -> dict[str, tuple[float, float]]:
    [run] = read_runs([root])
    assert run.plan is not None
    return {one.part: (one.planned, one.taken) for one in compared(run.plan, run)}


def test_after_the_first_stage_only_the_second_is_compared(tmp_path: Path):
    """It took 2 + 10 + 1 s and 4 x 3 s, and the evaluation after it 5 s."""
    timed_run(tmp_path)
    write_plan(tmp_path, begins=4)
    assert both(tmp_path) == {
        "refresh": (2.0, 2.0),
        "generate": (84.0, 10.0),
        "score": (4.0, 1.0),
        "optimize": (12.0, 12.0),
        "checkpoint": (4.0, 0.0),
        "evaluate": (4.0, 5.0),
        "training": (106.0, 25.0),
    }


def test_from_the_beginning_the_whole_run_is_compared(tmp_path: Path):
    timed_run(tmp_path)
    write_plan(tmp_path, begins=0)
    found = both(tmp_path)
    assert found["evaluate"] == (12.0, 10.0) and found["training"] == (137.0, 50.0)


def test_of_an_unfinished_stage_its_rollouts_and_half_of_its_updates_count(tmp_path: Path):
    timed_run(tmp_path, updates=6)
    write_plan(tmp_path, begins=4)
    found = both(tmp_path)
    assert found["generate"] == (84.0, 10.0) and found["optimize"] == (6.0, 6.0)


def test_the_last_line_of_a_run(tmp_path: Path):
    timed_run(tmp_path)
    assert in_words(RunDir(tmp_path)) == ""
    write_plan(tmp_path, begins=4)
    assert in_words(RunDir(tmp_path)) == (
        "plan        planned after update 4, from what stage 0 took: training would take 1:46 up "
        "to here, and it took 25.0 s (\u221276 %)"
    )


def test_the_page_has_the_comparison(tmp_path: Path):
    timed_run(tmp_path / "run")
    assert "Planned after update" not in report(tmp_path / "run").text
    write_plan(tmp_path / "run", begins=4)
    assert "Planned after update 4, from what stage 0 took: " in report(tmp_path / "run").text


@pytest.mark.parametrize("begins", [0, 4])
def test_a_run_that_has_done_nothing_since_its_plan_is_not_compared(tmp_path: Path, begins: int):
    timed_run(tmp_path, updates=4)
    write_plan(tmp_path, begins=4)
    assert in_words(RunDir(tmp_path)) == ""
