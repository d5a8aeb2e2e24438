from __future__ import annotations

import math

import pytest

from mugrpo.report.scale import (
    Scale,
    domain,
    duration,
    envelope,
    linear_ticks,
    log_ticks,
    multiplier,
    plain,
    thinned,
    tick_labels,
)


def test_a_linear_scale_and_a_log_scale():
    linear, log = Scale(0, 10, 100, 200), Scale(1, 100, 200, 100, log=True)
    assert [linear(v) for v in (0, 5, 10)] == [100, 150, 200]
    assert [log(v) for v in (1, 10, 100)] == pytest.approx([200, 150, 100])


def test_what_is_outside_stands_at_the_edge():
    assert Scale(1, 100, 200, 100, log=True)(1e-9) == 200
    assert Scale(0, 1, 0, 10)(5) == 10


def test_linear_ticks_are_round():
    assert linear_ticks(0, 1, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert linear_ticks(3, 97, 4) == pytest.approx([25, 50, 75])
    assert linear_ticks(-0.031, 0.028, 3) == pytest.approx([-0.02, 0, 0.02])


def test_log_ticks_are_powers_of_ten_with_finer_ones_where_those_are_few():
    assert log_ticks(0.5, 30, 6) == pytest.approx([0.5, 1, 2, 5, 10, 20])
    assert log_ticks(1e-3, 1e3, 7) == pytest.approx([10.0**k for k in range(-3, 4)])
    assert log_ticks(1e-30, 1e30, 5) == pytest.approx([1e-26, 1e-13, 1, 1e13, 1e26])
    assert log_ticks(1.01, 1.09, 4) == pytest.approx([1.02, 1.04, 1.06, 1.08])


def test_labels_of_one_axis_have_the_same_decimals():
    assert tick_labels([0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert tick_labels([-1000, 0, 1000]) == ["\u22121,000", "0", "1,000"]
    assert tick_labels([0.001, 1, 1e7], log=True) == ["0.001", "1", "10⁷"]


def test_small_axes_have_their_power_of_ten_taken_out():
    assert multiplier(0, 2e-4) == -4 and multiplier(0, 0.5) == 0 and multiplier(0, 2.5e6) == 6
    assert tick_labels([0, 1e-4, 2e-4], power=-4) == ["0", "1", "2"]


def test_an_axis_leaves_room_around_its_values_and_has_some_for_a_single_one():
    assert domain([0.0, 1.0], log=False) == pytest.approx((-0.06, 1.06))
    assert domain([5.0], log=False) == pytest.approx((4.5, 5.5))
    low, high = domain([1.0], log=True)
    assert low < 1 < high
    assert domain([], log=False, low=0, high=1) == (0, 1)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "\u2013"),
        (0, "0"),
        (0.97656, "0.977"),
        (12345.6, "12,346"),
        (-0.5, "\u22120.5"),
        (2e-4, "2\u00d710\u207b\u2074"),
        (1e12, "10\u00b9\u00b2"),
    ],
)
def test_numbers_read_plainly(value, shown):
    assert plain(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.0847, "85 ms"),
        (3.24, "3.2 s"),
        (59.97, "1:00"),
        (125, "2:05"),
        (3725, "1:02:05"),
    ],
)
def test_durations(seconds, shown):
    assert duration(seconds) == shown


def test_thinning_keeps_every_extreme_and_at_most_two_points_a_column():
    points = [(float(x), math.sin(x)) for x in range(4096)]
    points[1234] = (1234.0, 50.0)
    points[3000] = (3000.0, -50.0)
    kept = thinned(points, 100)
    assert len(kept) <= 200 and set(kept) <= set(points)
    assert (1234.0, 50.0) in kept and (3000.0, -50.0) in kept
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)


def test_thinning_keeps_gaps_of_a_column_and_few_points_as_they_are():
    few = [(0.0, 1.0), (1.0, None), (2.0, 3.0)]
    assert thinned(few, 10) == few
    gap = [(float(x), None if 400 <= x < 600 else 1.0) for x in range(1000)]
    assert [x for x, y in thinned(gap, 10) if y is None] == [400.0, 500.0]


def test_an_envelope_is_the_widest_of_each_step():
    lower = [(0.0, 2.0), (1.0, 1.0), (2.0, None), (3.0, None)]
    upper = [(0.0, 3.0), (1.0, 9.0), (2.0, 4.0), (3.0, None)]
    assert envelope(lower, upper, 2) == [(0.0, (1.0, 9.0)), (2.0, None)]
