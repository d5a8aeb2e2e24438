"""Verifiers: functions of (text, reference answer) that return a verdict.

A call may never return, or may use up all memory, so only worker processes call them.
"""

import re
from collections import deque
from fractions import Fraction
from functools import lru_cache, partial

from mugrpo.config.rewards import (
    ExactOptions,
    MathOptions,
    NumericOptions,
    RegexOptions,
)
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Status
from mugrpo.rewards.math.answers import MathAnswer, agree, exact_number, read
from mugrpo.rewards.math.response import answer_part, find, last_number, reference_part
from mugrpo.rewards.verdict import Verdict, Verifier, verdict

_LONGEST_NUMBER = 60  # characters of a response that is nothing but a number
_APART = re.compile(r"([-+]?[0-9][0-9,.]*)\s+([msghlLNJWV])")


def math(_: MathOptions) -> Verifier:
    """Return the verifier "math". Raises UsageError if math-verify is missing."""
    try:
        from mugrpo.rewards.math.mathematics import Mathematics  # math-verify is an extra
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the reward math needs math-verify ({error}): pip install 'mugrpo[math]'"
        ) from None
    return Mathematics()


def exact(_: ExactOptions) -> Verifier:
    """Return the verifier "exact": the answer is the reference, up to blanks around it.

    The answer is all of the last <answer>, or of the text after the last </think>.
    """

    def judged(text: str, reference: str) -> Verdict:
        answer = answer_part(text).strip()
        return verdict(answer == reference.strip(), answer or None)

    return judged


def regex(options: RegexOptions) -> Verifier:
    """Return the verifier "regex": a pattern's last match, or its first group, is the reference.

    It is looked for where `exact` reads, unless the pattern itself names a tag.
    """
    pattern = re.compile(options.pattern)
    tags = "think" in pattern.pattern or "answer>" in pattern.pattern

    def judged(text: str, reference: str) -> Verdict:
        last = deque(pattern.finditer(text if tags else answer_part(text)), maxlen=1)
        answer = last[0][1 if pattern.groups else 0] if last else None
        answer = None if answer is None else answer.strip()
        return verdict(answer == reference.strip(), answer)

    return judged


def numeric(options: NumericOptions) -> Verifier:
    """Return the verifier "numeric"."""
    return partial(near, tolerance=Fraction(str(options.tolerance)))


def near(text: str, reference: str, *, tolerance: Fraction) -> Verdict:
    """Judge whether the number that a text gives is close enough to the reference.

    It is in the last box or after "answer is", or it is the last number. It may differ by up to
    `tolerance` x max(1, |reference|), computed exactly. The reference may be a fraction or have a
    unit. Raises ValueError if it is not one number.
    """
    if not has_number(reference):
        raise ValueError(f"the reference answer {reference!r} is not a number")
    found = _numeric_answer(text)
    if found is None:
        return Verdict(Status.NO_ANSWER)
    written, answer = found
    same = partial(_same_numbers, tolerance=tolerance)
    return verdict(agree(_numeric_reference(reference), written, same), answer)


def _same_numbers(target: MathAnswer, answer: MathAnswer, tolerance: Fraction) -> bool:
    """Return whether two values are numbers that are close enough. Those of 50% and 0.5 are."""
    ours, theirs = exact_number(target.value), exact_number(answer.value)
    if ours is None or theirs is None:
        return False
    if target.unit != answer.unit and "%" in (target.unit, answer.unit):
        percent, plain = (ours, theirs) if target.unit == "%" else (theirs, ours)
        return plain == percent / 100 or (plain == percent and abs(plain) >= 1)
    return abs(theirs - ours) <= tolerance * max(Fraction(1), abs(ours))


@lru_cache(maxsize=256)  # a group's responses have the same reference
def _numeric_reference(reference: str) -> MathAnswer:
    groups = reference_part(reference)
    return _number_with_unit(groups[-1][-1] if groups else "")


def _number_with_unit(written: str) -> MathAnswer:
    """Return an answer taken apart. A letter after a blank is a unit here, and no factor: 5 m."""
    apart = _APART.fullmatch(written.strip())
    return read(rf"{apart[1]}\text{{{apart[2]}}}" if apart else written)


def has_number(reference: str) -> bool:
    """Return whether `reference` is a number that `numeric` can compare with."""
    return exact_number(_numeric_reference(reference).value) is not None


def _numeric_answer(text: str) -> tuple[MathAnswer, str] | None:
    """Return the number in the last box or after "answer is", or else the last one in `text`."""
    found = find(text)
    if found is None:
        return None
    written = ", ".join(dict.fromkeys(found[-1])) if found else answer_part(text)
    if found or len(written) <= _LONGEST_NUMBER:
        answer = _number_with_unit(written)
        if found or exact_number(answer.value) is not None:
            return answer, written
    number = last_number(text)
    return (read(number), number) if number else None
