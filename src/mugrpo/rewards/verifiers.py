"""Verifiers: pure functions of (text, reference answer) that give a verdict.

They may take for ever or take all memory, so they are called in worker processes only.
"""

from __future__ import annotations

import re
from collections import deque
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from functools import partial

from mugrpo.config.rewards import (
    ExactOptions,
    MathOptions,
    NumericOptions,
    RegexOptions,
    RewardOption,
)
from mugrpo.disk.records import Status
from mugrpo.rewards.verdict import Verdict, Verifier

# Grouped or plain digits, a fraction, an exponent; not inside a word or another number.
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:[eE][-+]?\d+)?"
)
_MINUS = str.maketrans("\N{MINUS SIGN}", "-")


def make_verifier(options: RewardOption) -> Verifier:
    """The verifier that `options` describes; raises UsageError where math-verify is missing."""
    match options:
        case MathOptions():
            from mugrpo.rewards.mathematics import Mathematics  # math-verify is an extra

            return Mathematics(strict=options.strict)
        case ExactOptions():
            return partial(exact, ignore_case=options.ignore_case)
        case NumericOptions():
            return partial(numeric, tolerance=options.tolerance)
        case RegexOptions():
            return partial(matched, pattern=re.compile(options.pattern))
    raise AssertionError(f"no verifier for {type(options).__name__}")


def exact(text: str, reference: str, *, ignore_case: bool) -> Verdict:
    """Whether `text` is `reference`, but for blanks around it; blanks alone are no answer."""
    answer = text.strip()
    return _verdict(_same(answer, reference, ignore_case), answer or None)


def numeric(text: str, reference: str, *, tolerance: float) -> Verdict:
    """Whether the last decimal number in `text` is within `tolerance` x max(1, |reference|).

    Thousands may be grouped by commas. Differences are exact: large integers do not blur.
    Raises ValueError for a reference that is no number.
    """
    wanted = _numbers(reference)
    if not wanted:
        raise ValueError(f"the reference answer {reference!r} is no number")
    found = _numbers(text)
    if not found:
        return _verdict(False, None)
    with_room = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN)
    try:
        number, target = _decimal(found[-1]), _decimal(wanted[-1])
        difference = with_room.abs(with_room.subtract(number, target))
        allowed = with_room.multiply(Decimal(tolerance), max(Decimal(1), abs(target)))
    except InvalidOperation:  # an exponent beyond all bounds
        return _verdict(False, found[-1])
    return _verdict(difference <= allowed, found[-1])


def has_number(reference: str) -> bool:
    """Whether `numeric` can compare with `reference`."""
    return bool(_numbers(reference))


def matched(text: str, reference: str, *, pattern: re.Pattern[str]) -> Verdict:
    """Whether `pattern`'s last match in `text`, or the match's first group, is `reference`."""
    last = deque(pattern.finditer(text), maxlen=1)
    found = last[0][1 if pattern.groups else 0] if last else None
    if found is None:
        return _verdict(False, None)
    return _verdict(_same(found.strip(), reference, ignore_case=False), found.strip())


def _verdict(right: bool, answer: str | None) -> Verdict:
    if answer is None:
        return Verdict(Status.NO_ANSWER)
    return Verdict(Status.RIGHT if right else Status.WRONG, answer)


def _same(answer: str, reference: str, ignore_case: bool) -> bool:
    if ignore_case:
        return answer.casefold() == reference.strip().casefold()
    return answer == reference.strip()


def _numbers(text: str) -> list[str]:
    return [found for found in _NUMBER.findall(text.translate(_MINUS)) if found.strip("+-")]


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))
