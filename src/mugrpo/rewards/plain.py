r"""Equality of final answers by text and exact numbers: a second judge beside math-verify's.

It reads an answer as `mathematics` does (`response`, `answers`), but compares values on its own
(`forms`), so that an error in one of the two shows as a disagreement. It needs no package,
evaluates no expression, and takes time linear in the text.

Without a box, a tag or "answer is", the answer is the last number in the text, if it stands alone:
not the 3 of 2\sqrt{3} or of x + 3.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction
from functools import lru_cache

from mugrpo.disk.records import Status
from mugrpo.rewards.answers import Answer, in_order, last, read, read_number, settled, targets
from mugrpo.rewards.forms import form
from mugrpo.rewards.response import (
    LONGEST_ANSWER,
    LONGEST_TEXT,
    final_part,
    find,
    led_by_words,
)
from mugrpo.rewards.verdict import Verdict

_TOKEN = re.compile(r"\\[dtc]?frac\s?\{-?[0-9]+\}\{[0-9]+\}|[0-9][0-9.,/]*|\.[0-9]+")
_WHOLE_TOKEN = re.compile(r"\\.*|[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]*\.?[0-9]+(?:/[0-9]+)?")
_BEFORE = re.compile(r"(?:^|[\s(\[=:~|>\"'$*`])(-? ?\\?[$\u20ac\u00a3]? ?)$")
_OPERATOR_BEFORE = re.compile(r"[+/^_{\\\u00d7]$|(?<!\*)\*$|[\w)}]\*\*$|[0-9]:$")
_TERM_BEFORE = re.compile(r"(?:[0-9)}]|\b[A-Za-z])\s*$")
_UNIT_AFTER = r"(?:[cmk]?m|k?g|[mk]?l|ft)"
_STUCK_AFTER = re.compile(
    rf"(?!\\[%)\]$\\])(?!{_UNIT_AFTER}(?:[\u00b2\u00b3]|\b))"
    r"(?:[\w{(\\]|\s*[+/^\u00d7]|\s*\*(?!\*)|\*\*\w|\s*-\s*[A-Za-z]\b|:[0-9])"
)


def plain(text: str, reference: str) -> Verdict:
    """Judge whether the answer in the last `LONGEST_TEXT` characters of `text` is the reference.

    Raises ValueError if the reference is empty or longer than `LONGEST_ANSWER` characters.
    """
    expected = _targets(reference)
    found = find(text)
    if found is None:
        return Verdict(Status.NO_ANSWER)
    pieces = last(found, len(expected)) if found else []
    written = ", ".join(pieces)
    right = len(pieces) == len(expected) and all(map(agree, expected, map(read, pieces)))
    if not right and (not found or led_by_words(text, written)):
        number = _last_number(text)
        if number is None:
            return Verdict(Status.NO_ANSWER)
        answer, written = read_number(*number)
        right = len(expected) == 1 and agree(expected[0], answer)
    return Verdict(Status.RIGHT if right else Status.WRONG, written.strip())


_targets = lru_cache(maxsize=256)(targets)  # a group's responses have the same reference


def agree(target: Answer, answer: Answer) -> bool:
    """Return whether `answer` equals the reference `target`, evaluating nothing."""
    right = settled(target, answer)
    if right is None and (pairs := in_order(target, answer)):
        return all(agree(*pair) for pair in pairs)
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


def _last_number(text: str) -> tuple[str, str] | None:
    """Return the last number with its sign and currency, and its tail, if it stands alone."""
    text = final_part(text)[-LONGEST_TEXT:]
    tokens = deque(_TOKEN.finditer(text), maxlen=1)
    if not tokens or len(tokens[0][0]) > LONGEST_ANSWER:
        return None
    start, token = tokens[0].start(), tokens[0][0].rstrip(".,/")
    if not _WHOLE_TOKEN.fullmatch(token):  # a list without blanks: 3,5
        head, comma, token = token.rpartition(",")
        start += len(head) + len(comma)
        if not comma or not _WHOLE_TOKEN.fullmatch(token):
            return None
        return token, ""
    head = text[max(0, start - 20) : start].replace("\N{MINUS SIGN}", "-")
    tail = text[start + len(token) :][:20]
    before = _BEFORE.search(head)
    if before is None or _STUCK_AFTER.match(tail):
        return None
    sign = before[1].replace(" ", "")
    context = head[: before.start(1)].rstrip()
    if _OPERATOR_BEFORE.search(context) or ("-" in sign and _TERM_BEFORE.search(context)):
        return None
    return sign + token, text[start + len(token) :]
