"""Verifiers: functions of (text, reference answer) that return a verdict.

A call may never return, or may use up all memory, so only worker processes call them.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction
from functools import lru_cache, partial

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
from mugrpo.rewards.answers import Answer, read, read_number
from mugrpo.rewards.code.judging import Code
from mugrpo.rewards.forms import exact_number
from mugrpo.rewards.notation import ascii_latex
from mugrpo.rewards.plain import plain
from mugrpo.rewards.response import LONGEST_ANSWER, LONGEST_TEXT, answer_part, find, reference_part
from mugrpo.rewards.units import same_unit
from mugrpo.rewards.verdict import Verdict, Verifier

# The last number of a text without a box: grouped or plain digits, a fraction, an exponent. It does
# not begin inside a word, a number or a time of day.
_NUMBER = re.compile(
    r"(?<![\w.:^])[-+]?(?:\d{1,2}:\d{2}(?!\d)|\\[dt]?frac\{-?\d+\}\{\d+\}|(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+|(?=\.\d))"
    r"(?:\.\d+)?(?:/\d+|[eE][-+]?\d+|\s*(?:\\times|\\cdot|\*)\s*10\^\{?-?\d+\}?)?)"
)


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
    """Judge whether the answer is `reference`, up to surrounding blanks. Blanks are no answer.

    The answer is all of the last <answer>, or of the text after the last </think>.
    """
    answer = answer_part(text).strip()
    return _verdict(_same(answer, reference, ignore_case), answer or None)


def numeric(text: str, reference: str, *, tolerance: float) -> Verdict:
    """Judge whether the number that a text gives is close enough to the reference.

    It is in the last box or after "answer is", or it is the last number. It may differ by up to
    `tolerance` x max(1, |reference|), computed exactly. The reference may be a fraction or have a
    unit. Raises ValueError if it is not one number.
    """
    target = _numeric_reference(reference)
    found = _numeric_answer(text)
    if found is None:
        return Verdict(Status.NO_ANSWER)
    written, answer = found
    if written.text == target.text:
        return Verdict(Status.RIGHT, answer)
    expected, number = exact_number(target.value), exact_number(written.value)
    if expected is None:
        raise ValueError(f"the reference answer {reference!r} is not a number")
    if number is None or not same_unit(target.unit, written.unit):
        return Verdict(Status.WRONG, answer)
    allowed = Fraction(str(tolerance)) * max(Fraction(1), abs(expected))
    return _verdict(abs(number - expected) <= allowed, answer)


@lru_cache(maxsize=256)  # a group's responses have the same reference
def _numeric_reference(reference: str) -> Answer:
    groups = reference_part(reference)
    return read(groups[-1][-1] if groups else "")


def has_number(reference: str) -> bool:
    """Return whether `reference` is a number that `numeric` can compare with."""
    return exact_number(_numeric_reference(reference).value) is not None


def _numeric_answer(text: str) -> tuple[Answer, str] | None:
    """Return the number in the last box or after "answer is", or else the last one in `text`."""
    found = find(text)
    if found is None:
        return None
    if found:
        written = ", ".join(dict.fromkeys(found[-1]))
        answer = read(written)
        if r"\boxed" in text or exact_number(answer.value) is not None:
            return answer, written
    part = ascii_latex(answer_part(text)[-LONGEST_TEXT:])
    last = deque(_NUMBER.finditer(part), maxlen=1)
    if not last or len(last[0][0]) > LONGEST_ANSWER:
        return None
    return read_number(last[0][0], part[last[0].end() :])


def matched(text: str, reference: str, *, pattern: re.Pattern[str]) -> Verdict:
    """Judge whether the last match of `pattern`, or its first group, is `reference`.

    It is looked for where `exact` reads, unless the pattern itself names a tag.
    """
    tags = "think" in pattern.pattern or "answer>" in pattern.pattern
    last = deque(pattern.finditer(text if tags else answer_part(text)), maxlen=1)
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
