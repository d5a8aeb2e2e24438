from __future__ import annotations

import pytest

from mugrpo.report.readable import duration, plain


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
