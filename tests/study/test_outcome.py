"""The outcome of a run, and the table and page of a study, with numbers by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.report.embed import png, svg_file, vega_lite
from mugrpo.report.read import RunData
from mugrpo.report.readable import TIMES
from mugrpo.study import outcome as outcome_module
from mugrpo.study.command import show_study
from mugrpo.study.figures import draw
from mugrpo.study.outcome import Results, outcome, quantity
from mugrpo.study.page import RESULTS, compared, folder_of, table, write_page
from mugrpo.study.spec import load_study

STUDY = """
title = "Two methods"
question = "Which?"
base = "{base}"
seeds = [0, 1, 2]
columns = ["accuracy", "training_seconds", "updates_to_0.9"]
baseline = {{ method = "plain" }}
findings = "None."
[axes.method]
plain = {{ }}
other = {{ optimizer.lr = 0.5 }}
[[figures]]
name = "curves"
title = "Accuracy <over> updates"
kind = "curves"
lines = "method"
[[figures]]
name = "final"
title = "Accuracy"
kind = "values"
lines = "method"
"""


def update(number: int, **values: Any) -> dict[str, Any]:
    times = {"time/update": 2.0, "time/read": 0.5, "time/checkpoint": 0.0}
    given = {"kl_behavior": 0.1 * number, "vetoed_fraction": 0.01 * number, **values}
    return {"kind": "update", "update": number, "skipped": 0, **times, **given}


def evaluation(number: int, accuracy: float | None) -> dict[str, Any]:
    return {"kind": "evaluation", "update": number, "accuracy": accuracy, "time/evaluate": 100.0}


def refresh(number: int) -> dict[str, Any]:
    times = {"time/refresh": 1.0, "time/generate": 3.0, "time/score": 1.0}
    return {"kind": "refresh", "update": number, "rollouts": 32, **times}


def run_data(**lines: list[dict[str, Any]]) -> RunData:
    kinds: dict[str, Any] = {"refreshes": [], "updates": [], "evaluations": [], **lines}
    return RunData("run", {}, {}, **kinds)


@pytest.fixture
def run() -> RunData:
    """Two stages of two updates, evaluated every two: .2, .8, .5; the second update exploded."""
    ratios = {1: 2.0, 2: 50.0, 3: None, 4: 3.0}
    return run_data(
        refreshes=[refresh(0), refresh(2)],
        updates=[update(n, **{"ratio/negative/max": ratios[n]}) for n in (1, 2, 3, 4)],
        evaluations=[evaluation(0, 0.2), evaluation(2, 0.8), evaluation(4, 0.5)],
    )


def test_a_runs_numbers_by_hand(run):
    row = outcome(run)
    assert (row["accuracy"], row["best"], row["mean"]) == (0.5, 0.8, 0.5)
    assert row["worst_fall"] == pytest.approx(0.3)
    # 2 refreshes of 1 + 3 + 1 seconds and 4 updates of 2.5
    assert row["training_seconds"] == 20.0
    assert (row["seconds/refresh"], row["seconds/optimize"], row["seconds/evaluate"]) == (
        2,
        10,
        300,
    )
    assert (row["updates"], row["stages"], row["rollouts"], row["skipped"]) == (4, 2, 64, 0)
    assert row["vetoed_fraction"] == pytest.approx(0.025)
    assert row["kl_behavior"] == pytest.approx(0.4) and row["ratio/negative/max"] == 50.0


def test_a_point_of_a_curve_covers_the_updates_since_the_last_evaluation(run):
    points = outcome(run)["curve"]
    assert [p["update"] for p in points] == [0, 2, 4]
    assert [p["accuracy"] for p in points] == [0.2, 0.8, 0.5]
    # nothing; then a refresh of 5 s and two updates of 2.5; then as much again
    assert [p["seconds"] for p in points] == [0.0, 10.0, 20.0]
    assert [p["vetoed_fraction"] for p in points] == [None, *map(pytest.approx, (0.015, 0.035))]
    assert [p["ratio/negative/max"] for p in points] == [None, 50.0, 3.0]


def test_what_it_took_to_reach_a_level(run):
    row = outcome(run)
    assert quantity(row, "updates_to_0.8") == 2 and quantity(row, "seconds_to_0.8") == 10.0
    assert quantity(row, "updates_to_0.1") == 0
    assert quantity(row, "updates_to_0.81") is None and quantity(row, "seconds_to_1") is None
    assert quantity(row, "best") == 0.8 and quantity(row, "no_such") is None


def test_a_run_without_evaluations_has_no_accuracy():
    row = outcome(run_data(refreshes=[refresh(0)], updates=[update(1)]))
    assert row["accuracy"] is row["best"] is row["worst_fall"] is None
    assert row["curve"] == []
    failed = outcome(run_data(evaluations=[evaluation(0, None)]))
    assert failed["accuracy"] is None and failed["curve"][0]["accuracy"] is None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text("[schedule]\nstages = 2\n")
    study = tmp_path / "study.toml"
    study.write_text(STUDY.format(base=tmp_path / "base.toml"))
    return study


def rows(accuracies: dict[str, list[float]], seconds: dict[str, list[float]]) -> list[Any]:
    made = []
    for method, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            run = run_data(evaluations=[evaluation(0, 0.1), evaluation(4, accuracy)])
            row = {"axis/method": method, "seed": seed, **outcome(run)}
            row["training_seconds"] = seconds[method][seed]
            made.append(row)
    return made


@pytest.fixture
def finished() -> list[Any]:
    return rows(
        {"plain": [0.5, 0.6, 0.7], "other": [0.9, 0.9]},
        {"plain": [10.0, 10.0, 10.0], "other": [20.0, 5.0]},
    )


def test_a_table_by_hand(file, finished):
    """.5, .6, .7: standard deviation .1; 4.303 x .1 / sqrt 3 = .248. None reached 0.9."""
    study, _ = load_study(file)
    head, _, plain, other = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table(study, finished).splitlines()
    )
    assert head[:3] == ["method", "runs", "accuracy on held-out problems"]
    assert plain == ["plain", "3", "0.600 ± 0.248", "10 ± 0", ""]
    # 20 and 5: standard deviation 15 / sqrt 2, times 12.706 / sqrt 2
    assert other == ["other", "2", "0.900 ± 0.000", f"12.5 ± {12.706 * 7.5:.1f}", "4 ± 0"]


def test_a_comparison_goes_seed_by_seed_and_times_are_ratios(file, finished):
    """Differences .4 and .3, ratios 2 and 1/2, whose logarithms have mean 0."""
    study, _ = load_study(file)
    *_, line = compared(study, finished).splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:3] == ["other", "2", f"+0.350 ± {12.706 * 0.05:.3f}"]
    # The logarithms' standard deviation is sqrt 2 log 2; exp(-+12.706 log 2) = 2^-+12.706
    assert cells[3:] == [f"x 1 (1.5{TIMES}10⁻⁴ to {2**12.706:,.0f})", ""]
    assert pytest.approx(1.5e-4, rel=0.01) == 2**-12.706


def test_a_column_of_ratios_has_a_geometric_mean(file):
    file.write_text(file.read_text().replace('"training_seconds"', '"ratio/negative/max"'))
    study, _ = load_study(file)
    some = rows({"plain": [0.5, 0.5], "other": [0.5]}, {"plain": [1.0, 1.0], "other": [1.0]})
    for row, ratio in zip(some, (10.0, 1000.0, 40.0), strict=True):
        row["ratio/negative/max"] = ratio
    assert "| 100 (" in table(study, some) and "| 40 |" in table(study, some)
    assert "| x 4 |" in compared(study, some)


def test_a_level_that_some_seeds_reach_says_how_many(file):
    study, _ = load_study(file)
    some = rows({"plain": [0.9, 0.6]}, {"plain": [1.0, 1.0]})
    assert "4 (1 of 2)" in table(study, some)


def test_the_page_has_question_table_pictures_and_findings(file, finished):
    study, cells = load_study(file)
    page = write_page(study, file, finished, len(cells))
    text = page.read_text()
    for part in ("# Two methods", "Which?", "5 of 6 runs", table(study, finished), "None."):
        assert part in text
    for name in ("curves", "final"):
        assert f"({name}.svg)" in text
        picture = ET.parse(page.with_name(f"{name}.svg")).getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        words = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}text")]
        assert "plain" in words and "other" in words
    before = {file.name: file.read_bytes() for file in page.parent.glob("*.svg")}
    write_page(study, file, finished, len(cells))
    assert before == {file.name: file.read_bytes() for file in page.parent.glob("*.svg")}


def rows_in(chart: Any, name: str) -> list[Any]:
    spec = vega_lite(chart)
    layers = spec.get("layer") or spec["hconcat"][0]["layer"]
    (found,) = [one for one in layers if one.get("name") == name]
    return spec["datasets"][found["data"]["name"]]


def test_every_seed_is_drawn_beside_the_mean_and_its_interval(file, finished):
    """.5, .6, .7 have .6 with .248 on either side; .9 and .9 have no width."""
    study, _ = load_study(file)
    final = draw(study, study.figures[1], finished)
    assert [row["x"] for row in rows_in(final, "seeds")] == [0.5, 0.6, 0.7, 0.9, 0.9]
    plain, other = rows_in(final, "means")
    assert [plain[k] for k in ("x", "low", "high")] == pytest.approx([0.6, 0.352, 0.848], abs=5e-4)
    assert [other[k] for k in ("x", "low", "high")] == pytest.approx([0.9, 0.9, 0.9])
    curves = draw(study, study.figures[0], finished)
    lines = [row for row in rows_in(curves, "lines") if row["run"] == "plain"]
    assert [(row["series"], row["y"]) for row in lines] == [
        ("seeds", [0.1, 0.5]),
        ("seeds", [0.1, 0.6]),
        ("seeds", [0.1, 0.7]),
        ("mean", [0.1, 0.6]),
    ]
    (band,) = [row for row in rows_in(curves, "bands") if row["run"] == "plain"]
    assert band["x"] == [0, 4] and band["y"] == pytest.approx([0.1, 0.352], abs=5e-4)
    assert band["y2"] == pytest.approx([0.1, 0.848], abs=5e-4)


def test_a_picture_is_light_and_dark_and_a_png_needs_no_browser(file, finished):
    study, _ = load_study(file)
    drawn = draw(study, study.figures[1], finished)
    assert "@media screen and (prefers-color-scheme: dark)" in svg_file(drawn)
    assert "var(--run-0)" in svg_file(drawn) and " id=" not in svg_file(drawn)
    assert png(drawn)[:8] == b"\x89PNG\r\n\x1a\n"


def test_results_are_kept_by_cell_and_other_options_are_refused(file, tmp_path, monkeypatch, run):
    _, cells = load_study(file)
    results = Results(folder_of(file) / RESULTS)
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


def test_another_clone_finds_the_same_runs_if_they_were_evaluated_the_same_way(
    file, tmp_path, monkeypatch, run
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
    results = Results(folder_of(file) / RESULTS)
    monkeypatch.chdir(tmp_path / "here")
    assert str(tmp_path) not in results.add(found["here"], tmp_path)["config"]
    monkeypatch.chdir(tmp_path / "there")
    assert results.of(found["there"]) is not None
    file.write_text(text.replace("[axes.method]", "[set]\nevaluation.samples = 3\n[axes.method]"))
    with pytest.raises(UsageError, match=r"made with other options \(evaluation\.samples\)"):
        results.of(load_study(file)[1][0])


def test_a_run_that_another_study_has_finished_is_taken_over(file, tmp_path, monkeypatch, run):
    """A run is the same if two studies only name it differently. Another seed is another run."""
    _, cells = load_study(file)
    monkeypatch.setattr(outcome_module, "read_runs", lambda _: [run])
    first = Results(folder_of(file) / RESULTS)
    first.add(cells[1], tmp_path)
    beside = file.with_name("beside.toml")
    text = file.read_text().replace("method", "way").replace("other =", "fast =")
    beside.write_text(text.replace("plain = { }", "plain = { optimizer.lr = 0.25 }"))
    _, others = load_study(beside)
    results = Results(folder_of(beside) / RESULTS)
    assert [str(cell) for cell in results.take_over(others)] == ["fast, seed 0"]
    row = Results(results.file).of(others[1])
    assert row is not None and row["axis/way"] == "fast" and "axis/method" not in row
    assert row["best"] == 0.8 and row["cell"] == others[1].name
    beside.write_text(
        beside.read_text().replace("[axes.way]", "[set]\nevaluation.every = 5\n[axes.way]")
    )
    _, rarely = load_study(beside)
    results.file.unlink()
    assert Results(results.file).take_over(rarely) == []  # it would have another curve


def test_a_column_that_the_first_row_lacks_is_kept(file, tmp_path, monkeypatch, run):
    _, cells = load_study(file)
    results = Results(folder_of(file) / RESULTS)
    bare = run_data(updates=[{k: v for k, v in update(1).items() if k != "vetoed_fraction"}])
    for cell, made in zip(cells, (bare, run), strict=False):
        monkeypatch.setattr(outcome_module, "read_runs", lambda _, made=made: [made])
        results.add(cell, tmp_path)
    found = [row["vetoed_fraction"] for row in Results(results.file).rows]
    assert found == [None, pytest.approx(0.025)]


def test_nothing_to_show_says_what_to_do(file):
    with pytest.raises(UsageError, match=r"no cell of .* is finished; `mugrpo study run"):
        show_study(file)
