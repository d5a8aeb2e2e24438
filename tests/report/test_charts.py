"""The data of charts: points, gaps, logarithms, and what a reader can switch off."""

import json
import math
import re
from typing import Any

import altair as alt
import pytest

from mugrpo.report import charts
from mugrpo.report.charts import (
    Axis,
    Line,
    Picture,
    line_chart,
    refresh_ticks,
    svg,
    thinned,
    vega_lite,
    words,
)
from mugrpo.report.figures import drawn
from mugrpo.report.readable import with_signs
from tests.report.parsed import layer
from tests.report.synthetic import HOSTILE


def spec(picture: Picture | None) -> dict[str, Any]:
    assert picture is not None
    return vega_lite(alt.layer(*picture.layers).properties(width=400))


def channel(chart: dict[str, Any], name: str, of: str = "lines") -> dict[str, Any]:
    (found,) = [one for one in chart["layer"] if one.get("name") == of]
    channel: dict[str, Any] = found["encoding"][name]
    return channel


def test_a_line_has_its_points_and_its_gaps():
    values = [1.0, 2.0, None, 4.0, math.nan, 6.0, math.inf]
    chart = spec(line_chart(Axis("x"), Axis("y"), [Line(range(7), values)]))
    (row,) = layer(chart, "lines")
    assert row["x"] == [0, 1, 2, 3, 4, 5, 6] and row["y"] == [1, 2, None, 4, None, 6, None]
    (path,) = re.findall(r'd="([^"]*)" stroke="var\(--run-0\)"', svg(chart))
    assert path.count("M") == 3  # 1 to 2, 4 alone, 6 alone
    (dots,) = layer(chart, "dots")  # which a line does not show
    assert dots["x"] == [3, 5] and dots["y"] == [4, 6]
    chart = spec(line_chart(Axis("x"), Axis(log=True), [Line(range(4), [1.0, 0.0, -5.0, 100.0])]))
    assert layer(chart, "lines")[0]["y"] == [1, None, None, 100]  # no place for zero
    assert channel(chart, "y")["scale"]["type"] == "log"


def test_a_band_has_both_edges_and_refreshes_are_ticks_above_the_chart():
    band = Line([0, 5, 10], [0.0, 1.0, 5.0], uppers=[5.0, None, 10.0])
    chart = spec(line_chart(Axis("x"), Axis("y"), [band, Line([0], [1.0])]))
    (row,) = layer(chart, "bands")
    assert (row["x"], row["y"], row["y2"]) == ([0, 5, 10], [0, None, 5], [5, None, 10])
    under = [refresh_ticks([5, 7], 0, 0)]
    chart = spec(line_chart(Axis("x"), Axis("y"), [Line([0, 10], [0.0, 1.0])], under=under))
    assert layer(chart, "refreshes_0") == [{"x": 5}, {"x": 7}]
    assert channel(chart, "y", "refreshes_0")["value"] < 0


def test_thinning_keeps_every_extreme_and_at_most_two_points_a_column():
    values: list[float | None] = [math.sin(x) for x in range(4096)]
    values[1234], values[3000] = 50.0, -50.0
    kept = thinned(values, 100)
    assert len(kept) <= 200 and kept == sorted(set(kept)) and {1234, 3000} <= set(kept)
    gap = [None if 400 <= x < 600 else 1.0 for x in range(1000)]
    assert [i for i in thinned(gap, 10) if gap[i] is None] == [400, 500]
    assert thinned([1.0, None, 3.0], 10) == [0, 1, 2]
    assert thinned([2.0, 1.0, 4.0, None], 2, ends=(max,)) == [0, 2]


def test_lines_have_colors_or_dashes_and_a_click_switches_one_off():
    lines = [Line([0], [2.0], "b", 1), Line([0], [1.0], "a", 0)]
    chart = spec(line_chart(Axis("x"), Axis("y"), lines))
    color = channel(chart, "color")
    assert color["scale"]["domain"] == ["a", "b"]  # the last line is on top, and first here
    assert color["scale"]["range"] == ["var(--run-0)", "var(--run-1)"]
    (shown,) = chart["params"]
    assert shown["bind"] == "legend" and shown["value"] == [{"label": "a"}, {"label": "b"}]
    for one in chart["layer"]:
        assert {"filter": {"param": shown["name"], "empty": False}} in one["transform"]
    shown["value"] = [{"label": "b"}]
    drawn_lines = re.findall(r'd="M[^-"]*" stroke="(var\(--run-\d\))"', svg(chart))
    assert drawn_lines == ["var(--run-1)"]  # not the legend's
    lines = [Line([0], [1.0], run, hue, kind) for run, hue in (("b", 1), ("a", 0)) for kind in "yx"]
    chart = spec(line_chart(Axis("x"), Axis("y"), lines))
    assert channel(chart, "color")["scale"]["domain"] == ["a", "b"]
    assert channel(chart, "strokeDash")["scale"]["domain"] == ["x", "y"]


def test_hostile_labels_are_text_in_the_page_and_in_the_picture():
    label = words(HOSTILE)
    assert label == f"{with_signs(HOSTILE)[:40]}\u2026"
    lines = [Line([0], [1.0], label), Line([0], [2.0], 'a\\"b\\', 1)]
    html = drawn(HOSTILE, HOSTILE, line_chart(Axis("x"), Axis("y"), lines))
    assert html is not None
    assert "<img" not in html and html.count("</script>") == 1
    data = re.findall(r'<script type="application/json">(.*?)</script>', html)[0]
    assert not set("<>&") & set(data) and data.isascii()
    assert [row["label"] for row in layer(json.loads(data), "lines")] == [label, 'a\\"b\\']


@pytest.mark.parametrize("values", [[0.0], [1e308, -1e308], [1e-320], [5.0, 5.0], [None], []])
@pytest.mark.parametrize("log", [False, True])
def test_no_values_are_too_odd_for_a_chart(values: list[float | None], log: bool):
    picture = line_chart(Axis("x"), Axis("y", log), [Line(range(len(values)), values)])
    known = [v for v in values if v is not None and (v == 0 or 1e-300 < abs(v) < 1e300)]
    assert (picture is None) == (not [v for v in known if v > 0 or not log])
    if picture:
        image = svg(spec(picture)).lower()
        assert "nan" not in image and "infinity" not in image


def test_an_axis_does_not_enlarge_what_hardly_differs():
    """Lengths of 14 to 14.015: a tenth of their middle, 1.40075, is shown. A constant, likewise."""
    for values, low, high in (
        ([14.0, 14.015], 13.307125, 14.707875),
        ([0.001, 0.001], 0.00095, 0.00105),
    ):
        y = charts._not_enlarged(charts.Axis("y"), min(values), max(values))
        assert (y.low, y.high) == pytest.approx((low, high))
    wide = charts._not_enlarged(charts.Axis("y"), 1.0, 2.0)
    assert (wide.low, wide.high) == (None, None)
    picture = charts.line_chart(
        charts.Axis("x"), charts.Axis("y"), [charts.Line([0, 1], [0.001] * 2)]
    )
    assert picture is not None and ">0.001<" in str(charts.page_parts(picture)[0])
