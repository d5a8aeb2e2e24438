from __future__ import annotations

import math
import re

import pytest

from mugrpo.report.charts import Axis, Chart, spread


def drawn(chart: Chart, css: str) -> list[str]:
    """The outlines of the shapes whose classes begin with `css`, in order."""
    return re.findall(rf'<path d="([^"]*)" class="{css}', chart.svg("a chart"))


def places(outline: str) -> list[tuple[float, float]]:
    numbers = [float(n) for n in re.findall(r"-?[\d.]+", outline)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def box() -> Chart:
    """A chart whose axes go from 0 to 10; the plot is from x 46 to 380 and y 182 to 20."""
    return Chart(Axis("x", low=0, high=10), Axis("y", low=0, high=10))


def test_a_line_goes_through_its_points():
    chart = box()
    chart.line([0, 5, 10], [0, 10, 5], css="run-0")
    assert places(drawn(chart, "line run-0")[0]) == [(46, 182), (213, 20), (380, 101)]


def test_gaps_break_a_line_and_a_point_alone_is_a_dot():
    chart = box()
    values = [1.0, 2.0, None, 4.0, math.nan, 6.0, math.inf]
    chart.line(range(7), values, css="run-0")
    line, lone = drawn(chart, "line")
    assert len(places(line)) == 2 and lone.count("M") == lone.count("h0") == 2


def test_a_log_axis_has_no_place_for_zero():
    chart = Chart(Axis(low=0, high=2), Axis(log=True))
    chart.line([0, 1, 2], [1.0, 0.0, 100.0], css="run-0")
    (lone,) = drawn(chart, "line run-0 lone")
    assert lone.count("M") == 2


def test_a_band_goes_there_along_one_line_and_back_along_the_other():
    chart = box()
    chart.band([0, 10], [0, 5], [5, 10], css="run-1")
    assert places(drawn(chart, "band run-1")[0]) == [(46, 182), (380, 101), (380, 20), (46, 101)]


def test_markers_stand_where_they_belong_and_not_outside():
    chart = box()
    chart.line([0, 10], [0, 10], css="run-0")
    chart.markers([5, 99], css="boundary")
    assert drawn(chart, "marker boundary") == ["M213 20v162"]


def test_rugs_are_rows_above_the_plot():
    chart = box()
    chart.line([0, 10], [10, 10], css="run-0")
    chart.markers([5], css="run-0", rug=True)
    chart.markers([5], css="run-1", rug=True)
    first, second = drawn(chart, "marker")
    top_of_plot = places(drawn(chart, "line")[0])[0][1]
    assert first == "M213 18v5" and second == "M213 24v5" and top_of_plot == 32


def test_bars_and_dots_say_what_they_are_where_the_mouse_rests():
    chart = box()
    chart.bars([(0, 5)], [(0, 10)], css="reason-stop", titles=["<10>"])
    chart.scatter([5, 6], [5, None], css="run-0", titles=["five", "nothing"])
    svg = chart.svg("a chart")
    assert '<rect x="46" y="20" width="166" height="162" class="bar reason-stop">' in svg
    assert "<title>&lt;10&gt;</title>" in svg and "<title>five</title>" in svg
    assert "nothing" not in svg


def test_labels_stand_at_the_ends_of_their_lines_and_apart():
    chart = box()
    chart.line([0, 10], [0, 5], css="run-0", label="one")
    chart.line([0, 10], [0, 5.1], css="run-1", label="two")
    found = re.findall(r'y="([\d.]+)" class="label run-\d">(\w+)<', chart.svg("a chart"))
    heights = {name: float(y) for y, name in found}
    assert heights["one"] - heights["two"] >= 13


def test_spread_keeps_order_distance_and_bounds():
    assert spread([10, 50], 13, 0, 100) == [10, 50]
    assert spread([50, 51, 52], 10, 0, 100) == [50, 60, 70]
    assert spread([95, 96, 97], 10, 0, 100) == [80, 90, 100]


@pytest.mark.parametrize("values", [[0.0], [1e308, -1e308], [1e-320], [5.0, 5.0], [None], []])
@pytest.mark.parametrize("log", [False, True])
def test_no_values_are_too_odd_for_a_chart(values, log):
    chart = Chart(Axis("x"), Axis("y", log=log))
    chart.line(range(len(values)), values, css="run-0")
    svg = chart.svg("odd")
    assert "nan" not in svg and "inf" not in svg


@pytest.mark.parametrize("xs", [[1e30], [1e308, 1e308], [0.0, 5e-324], [-1e30], [0.0]])
def test_no_places_are_too_odd_for_a_chart(xs):
    chart = Chart(Axis("x"), Axis("y"))
    chart.line(xs, [1.0] * len(xs), css="run-0")
    svg = chart.svg("odd")
    assert "nan" not in svg and "inf" not in svg
