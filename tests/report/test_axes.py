from __future__ import annotations

import pytest

from mugrpo.report.axes import Axis, log_ticks, with_room


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
