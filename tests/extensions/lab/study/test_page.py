"""The table, page and figures of a study, with numbers by hand."""

import math
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import PHASES
from mugrpo.extensions.lab.study import figures
from mugrpo.extensions.lab.study.figures import draw
from mugrpo.extensions.lab.study.outcome import outcome
from mugrpo.extensions.lab.study.page import compared, table, write_page
from mugrpo.extensions.lab.study.running import show_study
from mugrpo.extensions.lab.study.spec import Figure, load_study
from mugrpo.report.charts import Axis, Line, svg_file, vega_lite
from mugrpo.report.readable import TIMES
from tests.extensions.lab.study.builders import evaluation, run_data


@pytest.fixture
def study(file):
    return load_study(file)[0]


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


def test_a_table_by_hand(study, finished):
    """.5, .6, .7: standard deviation .1; 4.303 x .1 / sqrt 3 = .248. None reached 0.9."""
    head, _, plain, other = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table(study, finished).splitlines()
    )
    assert head[:3] == ["method", "runs", "accuracy on held-out problems"]
    assert plain == ["plain", "3", "0.600 ± 0.248", "10 ± 0", ""]
    # 20 and 5: standard deviation 15 / sqrt 2, times 12.706 / sqrt 2
    assert other == ["other", "2", "0.900 ± 0.000", f"12.5 ± {12.7062 * 7.5:.1f}", "4 ± 0"]
    some = rows({"plain": [0.9, 0.6]}, {"plain": [1.0, 1.0]})
    assert "4 (1 of 2)" in table(study, some)  # a level that some seeds reach


def test_a_comparison_goes_seed_by_seed_times_are_ratios_and_equivalence_has_a_p_value(
    study, finished
):
    """Differences .4 and .3, ratios 2 and 1/2, whose logarithms have mean 0."""
    *_, line = compared(study, finished).splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:3] == ["other", "2", f"+0.350 ± {12.7062 * 0.05:.3f}"]
    # The logarithms' standard deviation is sqrt 2 log 2; exp(-+12.706 log 2) = 2^-+12.706.
    # t = .35 / .05 = 7 with one degree: p = 1 - 2 atan(7) / pi
    p = 1 - 2 * math.atan(7) / math.pi
    assert cells[3:] == [f"x 1 (1.5{TIMES}10⁻⁴ to {2**12.7062:,.0f})", "", f"{p:.3f}"]
    assert pytest.approx(1.5e-4, rel=0.01) == 2**-12.706
    # Differences .4 and .3: t = (.5 - .35) / .05 = 3 with one degree, p = 1/2 - atan(3) / pi.
    tested = study.model_copy(update={"equivalence": 0.5})
    *_, head, _, line = compared(tested, finished).splitlines()
    assert head.endswith("| accuracy within ±0.5, p |")
    assert line.endswith(f"| {0.5 - math.atan(3) / math.pi:.3f} |")
    *_, line = compared(tested, finished[:4]).splitlines()  # one pair
    assert line.endswith("|  |")


def test_p_values_are_adjusted_for_all_tables_of_the_page(file):
    """Two baselines make four comparisons with p, p, q, q where p < q: 4 p, 4 p, 2 q, 2 q."""
    text = file.read_text().replace("baseline = ", "baseline = [{ pool = 'a' }, ")
    text = text.replace('{ method = "plain" }', '{ method = "plain" }]')
    file.write_text(f"{text}[axes.pool]\na = {{}}\nb = {{ seed = 9 }}\n")
    study, _ = load_study(file)
    made: list[Any] = []
    for pool, more in (("a", 0.0), ("b", 0.01)):
        values = {"plain": [0.5, 0.5 + 2 * more], "other": [0.7, 0.8 + 2 * more]}
        some = rows(values, {"plain": [1.0, 1.0], "other": [1.0, 1.0]})
        made += [{**row, "axis/pool": pool} for row in some]
    lines = compared(study, made).splitlines()
    found = [line for line in lines if line.startswith("Against")]
    assert found == ["Against a, seed by seed:", "Against plain, seed by seed:"]
    p_values = [line.split("|")[-2].strip() for line in lines if "| 2 |" in line]
    # b - a: 0 and .02, so t = 1 and p = 1/2, twice; other - plain: .2 and .3, so t = 5, twice
    p = 1 - 2 * math.atan(5) / math.pi
    assert p_values == ["1.000", "1.000", f"{4 * p:.3f}", f"{4 * p:.3f}"]


def test_a_column_of_ratios_has_a_geometric_mean(file):
    file.write_text(file.read_text().replace('"training_seconds"', '"ratio/negative/max"'))
    study, _ = load_study(file)
    some = rows({"plain": [0.5, 0.5], "other": [0.5]}, {"plain": [1.0, 1.0], "other": [1.0]})
    for row, ratio in zip(some, (10.0, 1000.0, 40.0), strict=True):
        row["ratio/negative/max"] = ratio
    assert "| 100 (" in table(study, some) and "| 40 |" in table(study, some)
    assert "| x 4 |" in compared(study, some)


def test_the_page_has_question_table_pictures_and_findings_if_there_is_any(file, finished):
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
    with pytest.raises(UsageError, match=r"no cell of .* is finished; `mugrpo study run"):
        show_study(file)


def rows_in(chart: Any, name: str) -> list[Any]:
    spec = vega_lite(chart)
    layers = spec.get("layer") or spec["hconcat"][0]["layer"]
    (found,) = [one for one in layers if one.get("name") == name]
    return spec["datasets"][found["data"]["name"]]


def test_every_seed_is_drawn_beside_the_mean_and_its_interval(study, finished):
    """.5, .6, .7 have .6 with .248 on either side; .9 and .9 have no width."""
    final = draw(study, study.figures[1], finished)
    assert [row["x"] for row in rows_in(final, "seeds")] == [0.5, 0.6, 0.7, 0.9, 0.9]
    plain, other = rows_in(final, "means")
    assert [plain[k] for k in ("x", "low", "high")] == pytest.approx([0.6, 0.352, 0.848], abs=5e-4)
    assert [other[k] for k in ("x", "low", "high")] == pytest.approx([0.9, 0.9, 0.9])
    curves = draw(study, study.figures[0], finished)
    lines = [row for row in rows_in(curves, "lines") if row["label"] == "plain"]
    found = [(row["opacity"], row["y"]) for row in lines]
    assert found == [*((0.35, [0.1, 0.5]), (0.35, [0.1, 0.6]), (0.35, [0.1, 0.7])), (1, [0.1, 0.6])]
    (band,) = [row for row in rows_in(curves, "bands") if row["label"] == "plain"]
    assert band["x"] == [0, 4] and band["y"] == pytest.approx([0.1, 0.352], abs=5e-4)
    assert band["y2"] == pytest.approx([0.1, 0.848], abs=5e-4)


def test_a_picture_against_seconds_has_the_means_at_mean_seconds(study, finished):
    """Update 4 after 6, 6 and 9 seconds is drawn at 7. A method without runs has no line."""
    against = study.figures[0].model_copy(update={"against": "seconds"})
    for row, seconds in zip(plain := finished[:3], (6.0, 6.0, 9.0), strict=True):
        row["curve"][1]["seconds"] = seconds
    lines = rows_in(draw(study, against, plain), "lines")
    assert [row["x"] for row in lines] == [[0, 6], [0, 6], [0, 9], [0, 7]]
    assert {row["label"] for row in lines} == {"plain"}


def test_a_bar_has_a_part_a_phase_with_its_mean_seconds(study, finished):
    """Two seeds of 3 and 5 seconds of generation are drawn as 4."""
    for row, seconds in zip(finished[3:], (3.0, 5.0), strict=True):
        row.update({f"seconds/{phase}": 1.0 for phase in PHASES}, stages=4)
        row["seconds/generate"] = seconds
    shown = Figure(name="f", title="F", kind="time", lines="method")
    bars = draw(study, shown, finished[3:])
    parts = [(row["part"], row["from"], row["to"]) for row in rows_in(bars, "parts")]
    assert parts == [
        ("generate", 0, 4),
        ("refresh", 4, 5),
        ("optimize", 5, 6),
        ("score, save", 6, 8),
        ("evaluate", 8, 9),
    ]
    (arm,) = rows_in(bars, "bars")
    assert (arm["head"], arm["end"], arm["to"]) == ("other: 4 refreshes", "0.900", 9)
    assert "seconds" in svg_file(bars)
    one = draw(study, shown.model_copy(update={"seeds": (1,)}), finished[3:])  # of 5 seconds
    assert rows_in(one, "parts")[0]["to"] == 5
    assert draw(study, shown, []) is None


def test_a_speedup_by_hand(study, finished):
    """Beside refreshes 9 and 4 seconds, with 15 and 4 of them: 24 / 8 at a second each."""
    study = study.model_copy(update={"baseline": ({"method": "plain"},)})
    for row in finished:
        plain = row["axis/method"] == "plain"
        row.update({"training_seconds": 10.0 if plain else 5.0, "seconds/refresh": 1.0})
        row["stages"] = 15 if plain else 4
    shown = Figure(name="f", title="F", kind="speedup", lines="method", arms=("other",))
    drawn = draw(study, shown, finished)
    (line,) = rows_in(drawn, "lines")
    at = dict(zip(line["x"], line["y"], strict=True))
    for seconds in (0.1, 120.0):
        found = at[min(at, key=lambda x, s=seconds: abs(x - s))]
        assert found == pytest.approx((9 + 15 * seconds) / (4 + 4 * seconds), rel=1e-3)
    assert "vLLM starts" in svg_file(drawn)
    assert draw(study, shown, finished[3:]) is None  # the baseline has not ended
    assert draw(study, shown, finished[:3]) is None


def test_lines_have_their_names_at_their_ends_without_an_overlap(study):
    """.9, .89 and .1 of 1 end at 23, 25.3 and 207 of 230 pixels: the second moves to 37."""
    lines = [Line([0, 1], [0.1, y], f"{y}") for y in (0.89, 0.9, 0.1)]
    chart = figures._names(lines, Axis("", low=0.0, high=1.0), 100)
    (rows,) = chart.to_dict()["datasets"].values()
    assert [(row["label"], row["pixel"]) for row in rows] == [
        ("0.9", pytest.approx(23)),
        ("0.89", pytest.approx(37)),
        ("0.1", pytest.approx(207)),
    ]


def test_a_picture_is_light_and_dark_and_may_have_panels(study, finished):
    drawn = svg_file(draw(study, study.figures[1], finished))
    assert "@media screen and (prefers-color-scheme: dark)" in drawn
    assert "var(--run-0)" in drawn and " id=" not in drawn
    curves = study.figures[0].model_copy(update={"lines": None, "panels": "method"})
    texts = ET.fromstring(svg_file(draw(study, curves, finished))).iter(
        "{http://www.w3.org/2000/svg}text"
    )
    assert {"method: plain", "method: other"} <= {text.text for text in texts}
