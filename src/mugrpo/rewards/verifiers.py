"""Verifiers: functions of (text, reference answer) that return a verdict.

A call may never return, or may use up all memory, so only worker processes call them.
"""

from __future__ import annotations

import re
from collections import deque
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from functools import partial

from mugrpo.config.rewards import (
    CodeOptions,
    ExactOptions,
    MathOptions,
    NumericOptions,
    PlainOptions,
    RegexOptions,
    RewardOption,
)
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Status
from mugrpo.rewards.code.judging import Code
from mugrpo.rewards.plain import plain
from mugrpo.rewards.verdict import Verdict, Verifier

# Grouped or plain digits, a fraction, an exponent. Not inside a word or another number.
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:[eE][-+]?\d+)?"
)
_MINUS = str.maketrans("\N{MINUS SIGN}", "-")


def make_verifier(options: RewardOption) -> Verifier:
    """Return the verifier that `options` describes. Raises UsageError if math-verify is missing,
    or a sandbox for code."""
    match options:
        case MathOptions():
            try:
                from mugrpo.rewards.mathematics import Mathematics  # math-verify is an extra
            except ModuleNotFoundError as error:
                raise UsageError(
                    f"the reward math needs math-verify ({error}): pip install 'mugrpo[math]'"
                ) from None
            return Mathematics(strict=options.strict)
        case PlainOptions():
            return plain
        case ExactOptions():
            return partial(exact, ignore_case=options.ignore_case)
        case NumericOptions():
            return partial(numeric, tolerance=options.tolerance)
        case RegexOptions():
            return partial(matched, pattern=re.compile(options.pattern))
        case CodeOptions():
            return Code(options)
    raise AssertionError(f"no verifier for {type(options).__name__}")


def exact(text: str, reference: str, *, ignore_case: bool) -> Verdict:
    """Judge whether `text` is `reference`, up to surrounding blanks. Blanks alone are no answer."""
    answer = text.strip()
    return _verdict(_same(answer, reference, ignore_case), answer or None)


def numeric(text: str, reference: str, *, tolerance: float) -> Verdict:
    """Judge whether the last decimal number in `text` is close enough to the reference.

    It may differ by up to `tolerance` x max(1, |reference|). Thousands may be grouped by commas.
    Differences are computed to 50 digits, so large integers are not rounded to floats. Raises
    ValueError if the reference has no number.
    """
    targets = _numbers(reference)
    if not targets:
        raise ValueError(f"the reference answer {reference!r} is not a number")
    numbers = _numbers(text)
    if not numbers:
        return _verdict(False, None)
    context = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN)
    try:
        number, target = _decimal(numbers[-1]), _decimal(targets[-1])
        difference = context.abs(context.subtract(number, target))
        allowed = context.multiply(Decimal(tolerance), max(Decimal(1), abs(target)))
    except InvalidOperation:  # an exponent out of range
        return _verdict(False, numbers[-1])
    return _verdict(difference <= allowed, numbers[-1])


def has_number(reference: str) -> bool:
    """Return whether `reference` has a number that `numeric` can compare with."""
    return bool(_numbers(reference))


def matched(text: str, reference: str, *, pattern: re.Pattern[str]) -> Verdict:
    """Judge whether the last match of `pattern` in `text`, or its first group, is `reference`."""
    last = deque(pattern.finditer(text), maxlen=1)
    answer = last[0][1 if pattern.groups else 0] if last else None
    if answer is None:
        return _verdict(False, None)
    return _verdict(_same(answer.strip(), reference, ignore_case=False), answer.strip())


def _verdict(right: bool, answer: str | None) -> Verdict:
    if answer is None:
        return Verdict(Status.NO_ANSWER)
    return Verdict(Status.RIGHT if right else Status.WRONG, answer)


def _same(answer: str, reference: str, ignore_case: bool) -> bool:
    if ignore_case:
        return answer.casefold() == reference.strip().casefold()
    return answer == reference.strip()


def _numbers(text: str) -> list[str]:
    return [match for match in _NUMBER.findall(text.translate(_MINUS)) if match.strip("+-")]


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))
