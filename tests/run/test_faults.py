"""When a line and what it was measured from say the same."""

from typing import Any

from mugrpo.run.faults import agrees
from tests.cases import table


@table(
    ("told", "same"),
    [
        ({"accuracy": 0.5, "entropy": 0.25}, True),
        ({"accuracy": 0.5, "entropy": 0.25 + 2**-52}, True),  # added up in another order
        ({"accuracy": 0.5, "entropy": 0.25 + 1e-6}, False),
        ({"accuracy": 0.502, "entropy": 0.25}, False),
        ({"accuracy": None}, False),
        ({"reward": None}, True),
        ({"reward": 0.0}, False),
        ({"reward": float("nan")}, True),  # written as null
        ({"accuracy": 0.5, "pass@8": 0.75}, True),  # measured by a later version alone
    ],
)
def test_numbers_agree_up_to_rounding(told: dict[str, Any], same: bool):
    line = {"kind": "evaluation", "update": 3, "accuracy": 0.5, "entropy": 0.25, "reward": None}
    assert agrees(line, told) is same
