r"""Equality of final answers by text and exact numbers: a second judge beside math-verify's.

It reads an answer as `mathematics` does (`response`, `answers`), but compares values on its own
(`forms`), so that an error in one of the two shows as a disagreement. It needs no package,
evaluates no expression, and takes time linear in the text.

Without a box, a tag or "answer is", the answer is the last number in the text, if it stands alone:
not the 3 of 2\sqrt{3} or of x + 3.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from mugrpo.disk.records import Status
from mugrpo.rewards.answers import Answer, last, paired, read, read_number, settled, targets
from mugrpo.rewards.forms import form
from mugrpo.rewards.response import find, last_number
from mugrpo.rewards.verdict import Verdict


def plain(text: str, reference: str) -> Verdict:
    """Judge whether the answer in the last 10,000 characters of `text` is the reference.

    Raises ValueError if the reference is empty or longer than 1,000 characters.
    """
    expected = _targets(reference)
    found = find(text)
    if found is None:
        return Verdict(Status.NO_ANSWER)
    pieces = last(found, len(expected)) if found else []
    written = ", ".join(pieces)
    right = len(pieces) == len(expected) and all(map(agree, expected, map(read, pieces)))
    if not found:
        number = last_number(text)
        if number is None:
            return Verdict(Status.NO_ANSWER)
        answer, written = read_number(*number)
        right = len(expected) == 1 and agree(expected[0], answer)
    return Verdict(Status.RIGHT if right else Status.WRONG, written.strip())


_targets = lru_cache(maxsize=256)(targets)  # a group's responses have the same reference


def agree(target: Answer, answer: Answer) -> bool:
    """Return whether `answer` equals the reference `target`, evaluating nothing."""
    right = settled(target, answer)
    if right is None and (pairs := paired(target, answer)) is not None:
        return bool(pairs) and all(agree(*pair) for pair in pairs)
    return _same(target, answer) if right is None else right


def _same(target: Answer, answer: Answer) -> bool:
    """Return whether two values are equal. Those of 50% and of 0.5 are."""
    ours, theirs = form(target.value), form(answer.value)
    if target.unit == answer.unit or "%" not in (target.unit, answer.unit):
        return ours == theirs
    if not isinstance(ours, Fraction) or not isinstance(theirs, Fraction):
        return False
    if target.unit == "%":
        return theirs in ({ours, ours / 100} if abs(theirs) >= 1 else {ours / 100})
    return ours in ({theirs, theirs / 100} if abs(theirs) >= 1 else {theirs / 100})
