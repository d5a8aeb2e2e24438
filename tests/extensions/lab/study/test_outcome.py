"""The outcome of a run by hand, and the results that a study keeps."""

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.study import outcome as outcome_module
from mugrpo.extensions.lab.study.outcome import Results, outcome, quantity
from mugrpo.extensions.lab.study.page import RESULTS, folder_of
from mugrpo.extensions.lab.study.spec import load_study
from mugrpo.report.read import RunData
from tests.extensions.lab.study.builders import STUDY, evaluation, refresh, run_data, update


@pytest.fixture
def results(file):
    return Results(folder_of(file) / RESULTS)


@pytest.fixture
def run() -> RunData:
    """Two stages of two updates, evaluated every two: .2, .8, .5; the second update exploded."""
    ratios = {1: 2.0, 2: 50.0, 3: None, 4: 3.0}
    return run_data(
        refreshes=[refresh(0), refresh(2)],
        updates=[update(n, **{"ratio/negative/max": ratios[n]}) for n in (1, 2, 3, 4)],
        evaluations=[evaluation(0, 0.2), evaluation(2, 0.8), evaluation(4, 0.5)],
    )


def test_a_runs_numbers_and_what_it_took_to_reach_a_level_by_hand(run):
    row = outcome(run)
    assert (row["accuracy"], row["best"], row["mean"]) == (0.5, 0.8, 0.5)
    assert row["worst_fall"] == pytest.approx(0.3)
    # 2 refreshes of 1 + 3 + 1 seconds and 4 updates of 2.5
    assert row["training_seconds"] == 20.0
    found = (row["seconds/refresh"], row["seconds/optimize"], row["seconds/evaluate"])
    assert found == (2, 10, 300)
    assert (row["updates"], row["stages"], row["rollouts"], row["skipped"]) == (4, 2, 64, 0)
    assert row["vetoed_fraction"] == pytest.approx(0.025)
    assert row["kl_behavior"] == pytest.approx(0.4) and row["ratio/negative/max"] == 50.0
    assert quantity(row, "updates_to_0.8") == 2 and quantity(row, "seconds_to_0.8") == 10.0
    assert quantity(row, "updates_to_0.1") == 0
    assert quantity(row, "updates_to_0.81") is None and quantity(row, "seconds_to_1") is None
    assert quantity(row, "best") == 0.8 and quantity(row, "no_such") is None


def test_a_point_of_a_curve_covers_the_updates_since_the_last_evaluation_if_any(run):
    points = outcome(run)["curve"]
    assert [p["update"] for p in points] == [0, 2, 4]
    assert [p["accuracy"] for p in points] == [0.2, 0.8, 0.5]
    # nothing; then a refresh of 5 s and two updates of 2.5; then as much again
    assert [p["seconds"] for p in points] == [0.0, 10.0, 20.0]
    assert [p["vetoed_fraction"] for p in points] == [None, *map(pytest.approx, (0.015, 0.035))]
    assert [p["ratio/negative/max"] for p in points] == [None, 50.0, 3.0]
    row = outcome(run_data(refreshes=[refresh(0)], updates=[update(1)]))
    assert row["accuracy"] is row["best"] is row["worst_fall"] is None
    assert row["curve"] == []
    failed = outcome(run_data(evaluations=[evaluation(0, None)]))
    assert failed["accuracy"] is None and failed["curve"][0]["accuracy"] is None


def test_results_are_kept_by_cell_and_other_options_are_refused(
    file, results, tmp_path, monkeypatch, run
):
    _, cells = load_study(file)
    monkeypatch.setattr(outcome_module, "read_runs", lambda _: [run])
    assert results.of(cells[0]) is None
    results.add(cells[0], tmp_path)
    results.add(cells[1], tmp_path)
    again = Results(results.file)
    assert again.of(cells[1]) == results.rows[1] and again.of(cells[2]) is None
    assert again.rows[0]["curve"][1]["accuracy"] == 0.8
    file.write_text(file.read_text().replace("optimizer.lr = 0.5", "optimizer.lr = 0.25"))
    _, changed = load_study(file)
    assert again.of(changed[0]) is not None
    with pytest.raises(
        UsageError, match=r"other, seed 0 made with other options \(optimizer\.lr\)"
    ):
        again.of(changed[1])
    file.write_text(file.read_text().replace("seeds =", "threads = 2\nseeds ="))
    with pytest.raises(UsageError, match=r"plain, seed 0 made with other options \(threads\)"):
        again.of(load_study(file)[1][0])


def test_another_clone_finds_runs_that_were_evaluated_the_same_way(
    file, results, tmp_path, monkeypatch, run
):
    """A config's absolute paths do not matter, but the number of evaluation samples does."""
    monkeypatch.setattr(outcome_module, "read_runs", lambda _: [run])
    found = {}
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "own.py").write_text("")
        monkeypatch.chdir(tmp_path / place)
        own = 'objective.name = "file", objective.path = "own.py"'
        text = STUDY.format(base=tmp_path / "base.toml").replace(
            "plain = { }", f"plain = {{ {own} }}"
        )
        file.write_text(text)
        found[place] = load_study(file)[1][0]
    assert found["here"].config != found["there"].config
    monkeypatch.chdir(tmp_path / "here")
    assert str(tmp_path) not in results.add(found["here"], tmp_path)["config"]
    monkeypatch.chdir(tmp_path / "there")
    assert results.of(found["there"]) is not None
    file.write_text(text.replace("[axes.method]", "[set]\nevaluation.samples = 3\n[axes.method]"))
    with pytest.raises(UsageError, match=r"made with other options \(evaluation\.samples\)"):
        results.of(load_study(file)[1][0])


def test_a_column_that_the_first_row_lacks_is_kept(file, results, tmp_path, monkeypatch, run):
    _, cells = load_study(file)
    bare = run_data(updates=[{k: v for k, v in update(1).items() if k != "vetoed_fraction"}])
    for cell, made in zip(cells, (bare, run), strict=False):
        monkeypatch.setattr(outcome_module, "read_runs", lambda _, made=made: [made])
        results.add(cell, tmp_path)
    found = [row["vetoed_fraction"] for row in Results(results.file).rows]
    assert found == [None, pytest.approx(0.025)]
