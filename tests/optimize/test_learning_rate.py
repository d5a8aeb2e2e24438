"""Learning-rate schedules by hand. Rates are shares of a peak of 1 unless stated otherwise."""

import math

import pytest

from mugrpo.optimize.learning_rate import learning_rate
from tests.cases import table


def rates(schedule: str, *, updates: int, warmup: int = 0, total: int = 7) -> list[float]:
    return [
        learning_rate(
            update, peak=1.0, schedule=schedule, warmup_updates=warmup, total_updates=total
        )
        for update in range(updates)
    ]


ROOT = math.sqrt(0.5)


@table(
    ("schedule", "options", "expected"),
    [
        ("constant", {}, [1.0] * 7),
        # it rises in equal steps and never starts at 0
        ("constant", {"warmup": 4}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        # after 2 updates of warm-up, progress goes 0, 1/5, .. 4/5
        ("linear", {"warmup": 2}, [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]),
        # fall = (1 - cos(pi progress)) / 2 = 0, .1464, .5, .8536; rate = 1 - fall
        ("cosine", {"warmup": 2, "total": 6}, [0.5, 1.0, 1.0, (1 + ROOT) / 2, 0.5, (1 - ROOT) / 2]),
    ],
)
def test_rates_by_hand(schedule, options, expected):
    assert rates(schedule, updates=len(expected), **options) == pytest.approx(expected)


@table(("schedule", "last"), [("linear", 1 / 7), ("cosine", 0.049516)])
def test_the_last_update_still_trains(schedule, last):
    """Linear: 1 - 6/7. Cosine: (1 + cos(6 pi / 7)) / 2 = (1 - 0.900969) / 2."""
    assert rates(schedule, updates=7)[-1] == pytest.approx(last, abs=1e-6)
