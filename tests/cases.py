"""Which cases of a test run by default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(number: int, cases: Iterable[Any]) -> list[Any]:
    """Return `cases`. All but the first `number` of them run in `make test-long` only.

    Use it for cases that show the same in other places, if each takes a second or more.
    """
    cases = list(cases)
    values = [case if isinstance(case, tuple) else (case,) for case in cases[number:]]
    return cases[:number] + [pytest.param(*value, marks=pytest.mark.long) for value in values]
