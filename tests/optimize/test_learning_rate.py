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
        ("linear", {}, [n / 7 for n in range(7, 0, -1)]),  # the last update still trains
        # fall = (1 - cos(pi progress)) / 2 = 0, .1464, .5, .8536; rate = 1 - fall
        ("cosine", {"warmup": 2, "total": 6}, [0.5, 1.0, 1.0, (1 + ROOT) / 2, 0.5, (1 - ROOT) / 2]),
    ],
)
def test_rates_by_hand(schedule, options, expected):
    assert rates(schedule, updates=len(expected), **options) == pytest.approx(expected)
