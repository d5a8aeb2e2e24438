"""Numbers as answers write them, compared exactly: fractions, decimals, powers of 10, percent."""

from __future__ import annotations

import re
from fractions import Fraction

from mugrpo.rewards.math.answers import Answer

_LARGEST_EXPONENT = 400  # of 10, in scientific notation
_DECIMAL = r"[0-9]+(?:\.[0-9]*)?"
_NUMBER = re.compile(
    rf"""(?P<sign>[-+]?)(?:
        (?P<whole>[0-9]+)??\\frac\{{(?P<minus>-?)(?P<over>{_DECIMAL})\}}\{{(?P<under>{_DECIMAL})\}}
        |(?P<over2>{_DECIMAL})/(?P<under2>{_DECIMAL})
        |(?P<decimal>{_DECIMAL})(?:(?:[eE]|(?:\\cdot|x)10\^)\{{?(?P<exponent>[-+]?[0-9]{{1,4}})\}}?)?
        |10\^\{{(?P<power>-?[0-9]{{1,4}})\}}
    )""",
    re.VERBOSE,
)


def exact_number(text: str) -> Fraction | None:
    """Return the number that `text` is, in parentheses or not, or None for anything else."""
    match = _NUMBER.fullmatch(text[1:-1] if text[:1] + text[-1:] == "()" else text)
    if match is None:
        return None
    over, under = match["over"] or match["over2"], match["under"] or match["under2"]
    exponent = int(match["exponent"] or match["power"] or 0)
    if abs(exponent) > _LARGEST_EXPONENT:
        return None
    if over is None:
        value = Fraction((match["decimal"] or "1").rstrip(".")) * Fraction(10) ** exponent
    elif not (divisor := Fraction(under.rstrip("."))):
        return None
    else:
        if match["whole"] and match["minus"]:
            return None
        value = Fraction(over.rstrip(".")) / divisor + int(match["whole"] or 0)
    return -value if (match["sign"] == "-") != (match["minus"] == "-") else value


def same_numbers(target: Answer, answer: Answer) -> bool:
    """Return whether two values are equal numbers. Those of 50% and 0.5 are."""
    ours, theirs = exact_number(target.value), exact_number(answer.value)
    if ours is None or theirs is None:
        return False
    if target.unit == answer.unit or "%" not in (target.unit, answer.unit):
        return ours == theirs
    percent, plain = (ours, theirs) if target.unit == "%" else (theirs, ours)
    return plain == percent / 100 or (plain == percent and abs(plain) >= 1)
