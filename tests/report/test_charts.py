"""The data of charts: points, gaps, logarithms, and what a reader can switch off."""

from __future__ import annotations

import json
import math
import re

import altair as alt
import pytest

from mugrpo.report.charts import (
    Axis,
    Picture,
    Trace,
    envelope,
    line_chart,
    log_ticks,
    refresh_lines,
    svg,
    thinned,
    vega_lite,
    with_room,
    words,
)
from mugrpo.report.figures import drawn
from mugrpo.report.readable import visible
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


def test_hostile_labels_are_text_in_the_page_and_in_the_picture():
    label = words(HOSTILE)
    assert label == f"{visible(HOSTILE)[:40]}\u2026"
    traces = [Trace([0], [1.0], series=label), Trace([0], [2.0], series='a\\"b\\')]
    html = drawn(HOSTILE, HOSTILE, line_chart(Axis("x"), Axis("y"), traces))
    assert html is not None
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
        image = svg(spec(picture)).lower()
        assert "nan" not in image and "infinity" not in image


@pytest.mark.parametrize("xs", [[1e30], [1e99, 1e99], [0.0, 5e-324], [-1e30], [0.0]])
def test_no_xs_are_too_odd_for_a_chart(xs):
    image = svg(spec(line_chart(Axis("x"), Axis("y"), [Trace(xs, [1.0] * len(xs))]))).lower()
    assert "nan" not in image and "infinity" not in image


def test_an_axis_leaves_room_around_its_values_even_if_there_is_one():
    assert with_room([0.0, 1.0]) == pytest.approx((-0.06, 1.06))
    assert with_room([5.0]) == pytest.approx((4.5, 5.5))
    low, high = with_room([1.0], log=True)
    assert low < 1 < high
    low, high = with_room([1e-300, 1e300], log=True)
    assert low > 0 and high < 1e301


def test_log_ticks_are_powers_of_ten_with_finer_ones_if_those_are_few():
    assert log_ticks(Axis(low=0.5, high=30)) == pytest.approx([0.5, 1, 2, 5, 10, 20])
    assert log_ticks(Axis(low=1e-3, high=1e3)) == pytest.approx([10.0**k for k in range(-3, 4)])
    wide = log_ticks(Axis(low=1e-30, high=1e30))
    assert len(wide) <= 8 and wide[0] == pytest.approx(1e-30)


def test_thinning_keeps_every_extreme_and_at_most_two_points_a_column():
    points = [(float(x), math.sin(x)) for x in range(4096)]
    points[1234] = (1234.0, 50.0)
    points[3000] = (3000.0, -50.0)
    kept = thinned(points, 100)
    assert len(kept) <= 200 and set(kept) <= set(points)
    assert (1234.0, 50.0) in kept and (3000.0, -50.0) in kept
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)


def test_thinning_keeps_columns_of_gaps_and_short_series():
    few = [(0.0, 1.0), (1.0, None), (2.0, 3.0)]
    assert thinned(few, 10) == few
    gap = [(float(x), None if 400 <= x < 600 else 1.0) for x in range(1000)]
    assert [x for x, y in thinned(gap, 10) if y is None] == [400.0, 500.0]


def test_an_envelope_is_the_widest_of_each_step():
    lower = [(0.0, 2.0), (1.0, 1.0), (2.0, None), (3.0, None)]
    upper = [(0.0, 3.0), (1.0, 9.0), (2.0, 4.0), (3.0, None)]
    assert envelope(lower, upper, 2) == [(0.0, (1.0, 9.0)), (2.0, None)]
