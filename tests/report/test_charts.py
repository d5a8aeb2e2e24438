"""The data of charts: points, gaps, logarithms, and what a reader can switch off."""

from __future__ import annotations

import json
import math
import re

import altair as alt
import pytest

from mugrpo.report.axes import Axis
from mugrpo.report.charts import Picture, Trace, line_chart, refresh_lines, words
from mugrpo.report.embed import chart_markup, svg, vega_lite
from mugrpo.report.markup import visible
from mugrpo.report.rows import Part, Row, stacked_rows
from tests.report.parsed import layer
from tests.report.synthetic import HOSTILE


def spec(picture: Picture | None) -> dict:
    assert picture is not None
    return vega_lite(alt.layer(*picture.layers, *picture.hover).properties(width=400))


def channel(chart: dict, name: str, of: str = "lines") -> dict:
    (found,) = [one for one in chart["layer"] if one.get("name") == of]
    return found["encoding"][name]


def test_a_line_has_its_points_and_its_gaps():
    values = [1.0, 2.0, None, 4.0, math.nan, 6.0, math.inf]
    chart = spec(line_chart(Axis("x"), Axis("y"), [Trace(range(7), values)]))
    (row,) = layer(chart, "lines")
    assert row["x"] == [0, 1, 2, 3, 4, 5, 6] and row["y"] == [1, 2, None, 4, None, 6, None]
    (path,) = re.findall(r'd="([^"]*)" stroke="var\(--run-0\)"', svg(chart))
    assert path.count("M") == 3  # 1 to 2, 4 alone, 6 alone


def test_a_log_axis_has_no_place_for_zero():
    picture = line_chart(Axis("x"), Axis(log=True), [Trace([0, 1, 2, 3], [1.0, 0.0, -5.0, 100.0])])
    chart = spec(picture)
    assert layer(chart, "lines")[0]["y"] == [1, None, None, 100]
    scale = channel(chart, "y")["scale"]
    assert scale["type"] == "log" and 0 < scale["domainMin"] < 1 and 100 < scale["domainMax"] < 200
    assert channel(chart, "y")["axis"]["values"] == [1, 2, 5, 10, 20, 50, 100]


def test_a_log_axis_from_a_bound_holds_smaller_values_at_its_edge():
    trace = Trace([0, 1], [1e-9, 1.0])
    chart = spec(line_chart(Axis("x"), Axis(log=True, low=1e-2), [trace]))
    scale = channel(chart, "y")["scale"]
    assert 1e-3 < scale["domainMin"] < 1e-2 and scale["clamp"]


def test_a_band_has_both_edges_and_is_unknown_if_one_is():
    trace = Trace([0, 5, 10], [0.0, 1.0, 5.0], uppers=[5.0, None, 10.0])
    chart = spec(line_chart(Axis("x"), Axis("y"), [trace, Trace([0], [1.0])]))
    (row,) = layer(chart, "bands")
    assert (row["x"], row["y"], row["y2"]) == ([0, 5, 10], [0, None, 5], [5, None, 10])


def test_long_lines_are_thinned_and_no_extreme_is_lost():
    values = [math.sin(x) for x in range(4096)]
    values[1234], values[3000] = 50.0, -50.0
    chart = spec(line_chart(Axis("x"), Axis("y"), [Trace(range(4096), values)]))
    (row,) = layer(chart, "lines")
    assert len(row["x"]) <= 320
    points = dict(zip(row["x"], row["y"], strict=True))
    assert points[1234] == 50 and points[3000] == -50
    assert all(value == pytest.approx(values[x], rel=1e-4) for x, value in points.items())


def test_series_of_one_run_have_colors_and_a_click_switches_one_off():
    traces = [Trace([0], [1.0], series="a"), Trace([0], [2.0], series="b", color="run-1")]
    chart = spec(line_chart(Axis("x"), Axis("y"), traces))
    color = channel(chart, "color")
    assert color["field"] == "series" and color["scale"]["domain"] == ["a", "b"]
    assert color["scale"]["range"] == ["var(--run-0)", "var(--run-1)"]
    (shown,) = chart["params"]
    assert shown["bind"] == "legend" and shown["value"] == [{"series": "a"}, {"series": "b"}]
    shapes = [one for one in chart["layer"] if one["name"] in ("lines", "points")]
    for one in shapes:
        assert {"filter": {"param": shown["name"], "empty": False}} in one["transform"]
    shown["value"] = [{"series": "b"}]
    lines = re.findall(r'd="M[^-"]*" stroke="(var\(--run-\d\))"', svg(chart))  # not the legend's
    assert lines == ["var(--run-1)"]


def test_runs_have_colors_and_their_series_have_dashes():
    traces = [
        Trace([0], [1.0], run, series, hue, style)
        for run, hue in (("second", "run-1"), ("first", "run-0"))
        for series, style in (("mean", "dashed"), ("max", "dotted thin"))
    ]
    chart = spec(line_chart(Axis("x"), Axis("y"), traces))
    color, dash = channel(chart, "color"), channel(chart, "strokeDash")
    assert color["scale"]["domain"] == ["first", "second"]
    assert color["scale"]["range"] == ["var(--run-0)", "var(--run-1)"]
    assert dash["scale"]["domain"] == ["mean", "max"]
    assert dash["scale"]["range"] == [[6, 4], [1, 3.5]]
    assert {one["name"] for one in chart["params"]} == {"shown_run", "shown_series"}


def test_points_have_tooltips_and_a_still_picture_has_no_such_layer():
    picture = line_chart(Axis("updates"), Axis("nats"), [Trace([1, 2], [0.5, 0.25])])
    tooltip = channel(spec(picture), "tooltip", "points")
    assert [one["title"] for one in tooltip] == ["updates", "nats"]
    still = line_chart(Axis("updates"), Axis("nats"), [Trace([1, 2], [0.5, 0.25])], live=False)
    assert [one["name"] for one in spec(still)["layer"]] == ["lines"]


def test_refreshes_are_drawn_under_the_lines():
    trace = Trace([0, 10], [0.0, 10.0])
    chart = spec(line_chart(Axis("x"), Axis("y"), [trace], under=[refresh_lines([5, 7])]))
    assert chart["layer"][0]["name"] == "refreshes"
    assert layer(chart, "refreshes") == [{"x": 5}, {"x": 7}]


def test_rows_stack_their_parts_with_the_text_that_fits():
    rows = [Row("stage 0", [Part(3.0, "a", "a: 3", "3"), Part(0.01, "b", "b: 0", "0")], "3.01")]
    chart = spec(stacked_rows(rows, {"a": "optimize", "b": "score"}))
    first, second = layer(chart, "parts")
    assert (first["x"], first["x2"], second["x"], second["x2"]) == (0, 3, 3, 3.01)
    assert (first["text"], second["text"]) == ("3", "")
    assert (first["ink"], second["ink"]) == ("var(--on-dark)", "var(--on-light)")


def test_hostile_labels_are_text_in_the_page_and_in_the_picture():
    label = words(HOSTILE)
    assert label == f"{visible(HOSTILE)[:40]}\u2026"
    traces = [Trace([0], [1.0], series=label), Trace([0], [2.0], series='a\\"b\\')]
    picture = line_chart(Axis("x"), Axis("y"), traces)
    assert picture is not None
    html = chart_markup("a chart", picture)
    assert "<img" not in html and html.count("</script>") == 1
    data = re.findall(r'<script type="application/json">(.*?)</script>', html)[0]
    assert not set("<>&") & set(data) and data.isascii()
    assert [row["series"] for row in layer(json.loads(data), "lines")] == [label, 'a\\"b\\']


@pytest.mark.parametrize("values", [[0.0], [1e308, -1e308], [1e-320], [5.0, 5.0], [None], []])
@pytest.mark.parametrize("log", [False, True])
def test_no_values_are_too_odd_for_a_chart(values, log):
    picture = line_chart(Axis("x"), Axis("y", log=log), [Trace(range(len(values)), values)])
    known = [
        v for v in values if v is not None and (v == 0 or abs(v) > 1e-300) and (v > 0 or not log)
    ]
    known = [v for v in known if abs(v) < 1e300]
    assert (picture is None) == (not known)
    if picture:
        drawn = svg(spec(picture)).lower()
        assert "nan" not in drawn and "infinity" not in drawn


@pytest.mark.parametrize("xs", [[1e30], [1e99, 1e99], [0.0, 5e-324], [-1e30], [0.0]])
def test_no_xs_are_too_odd_for_a_chart(xs):
    drawn = svg(spec(line_chart(Axis("x"), Axis("y"), [Trace(xs, [1.0] * len(xs))]))).lower()
    assert "nan" not in drawn and "infinity" not in drawn
