"""Whether what a program gives is what a test expects. All of this happens outside the sandbox."""

import json
import math
import re
import sys
from decimal import Decimal
from typing import Any

from mugrpo.extensions.code.inside import LONGEST_INTEGER, decode

# Only one way to read each digit, or text that is almost a number would take quadratic time.
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?", re.ASCII)
_TOLERANCE = 1e-6  # of floats: absolute below 1, relative above
_INTEGER = re.compile(r"[-+]?\d+", re.ASCII)


def same_text(printed: str, expected: str) -> bool:
    """Return whether two outputs have the same tokens, which white space separates.

    Two numbers are also the same if they differ by at most `_TOLERANCE`, times the larger one if
    that is above 1, and by nothing if an integer is expected: 2.0 is 2.
    """
    tokens, targets = printed.split(), expected.split()
    return len(tokens) == len(targets) and all(
        token == target or _same_number(token, target)
        for token, target in zip(tokens, targets, strict=True)
    )


def _same_number(token: str, target: str) -> bool:
    if not (_NUMBER.fullmatch(token) and _NUMBER.fullmatch(target)):
        return False
    if _INTEGER.fullmatch(token) and _INTEGER.fullmatch(target):
        return False  # they differ as text: 07 is not 7
    if _INTEGER.fullmatch(target):
        return Decimal(token) == Decimal(target)
    return math.isclose(float(token), float(target), rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def value_of(output: str) -> Any:
    """Return the value that a program claims. Raises ValueError if the output describes none."""
    sys.set_int_max_str_digits(LONGEST_INTEGER)
    try:
        return decode(json.loads(output))
    except (TypeError, LookupError, RecursionError, AttributeError, OverflowError) as error:
        raise ValueError(f"it describes no value: {error}") from None


def same_value(value: Any, expected: Any) -> bool:
    """Return whether a value is what JSON describes.

    Tuples count as lists, and the keys of a dictionary as text, since JSON has no others. A float
    may differ by `_TOLERANCE`, times the larger one if that is above 1. Otherwise Python's ==
    decides.
    """
    if isinstance(expected, list):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(expected)
            and all(same_value(*pair) for pair in zip(value, expected, strict=True))
        )
    if isinstance(expected, dict):
        if not isinstance(value, dict):
            return False
        named = {str(key): entry for key, entry in value.items()}
        return named.keys() == expected.keys() and all(
            same_value(named[key], entry) for key, entry in expected.items()
        )
    numbers = isinstance(value, int | float) and isinstance(expected, int | float)
    if numbers and isinstance(expected, float) and math.isfinite(expected):
        try:
            return math.isclose(value, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        except OverflowError:  # an integer that no float can hold
            return False
    return bool(value == expected)
