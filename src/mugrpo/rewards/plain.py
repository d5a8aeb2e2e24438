"""Equality of final answers by text and exact numbers: a second reading beside math-verify's.

It shares no code with `mathematics`, so that an error in one of the two shows as a disagreement.
It needs no package, evaluates no expression, and takes time linear in the text.

The answer is, in this order:

- what is in the last box;
- what follows the last "answer is", "answer:" or "####";
- the last number in the text, if it stands alone: not the 3 of 2\\sqrt{3} or of x + 3.

`forms` says when two answers are equal.
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache

from mugrpo.disk.records import Status
from mugrpo.rewards.forms import Form, form, same
from mugrpo.rewards.verdict import Verdict

LONGEST_TEXT = 10_000  # characters at the end of a response that are read
LONGEST_ANSWER = 1_000  # characters; something longer is not taken for an answer

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_UNBRACED = re.compile(r"[^\s$]*")

_MARK = re.compile(r"\banswer(?:\s+is\b|\s*:|\*+\s*:)|####", re.IGNORECASE)
_DISPLAY = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]", re.DOTALL)
# As pandoc: no blank inside the dollars, no digit after them. "$5 and $6" are amounts of money.
_FORMULA = re.compile(r"\$(?=\S)([^$]+)(?<=\S)\$(?![0-9])|\\\((.+?)\\\)")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|,\s+(?=(?:so|since|because|as|which|where|when)\b)")
_PROSE = re.compile(r"(?:[A-Za-z']+[ ,]+){3}")

_TOKEN = re.compile(r"\\[dtc]?frac\s?\{-?[0-9]+\}\{[0-9]+\}|[0-9][0-9.,/]*|\.[0-9]+")
_WHOLE_TOKEN = re.compile(r"\\.*|[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]*\.?[0-9]+(?:/[0-9]+)?")
_BEFORE = re.compile(r"(?:^|[\s(\[=:~|>\"'$*])(-? ?\\?[$€£]? ?)$")
_OPERATOR_BEFORE = re.compile(r"[+/^_{\\\u00d7]$|(?<!\*)\*$|[\w)}]\*\*$|[0-9]:$")
_TERM_BEFORE = re.compile(r"(?:[0-9)}]|\b[A-Za-z])\s*$")
_PERCENT_AFTER = re.compile(r"\s?\\?%")
_STUCK_AFTER = re.compile(
    r"(?!\\[%)\]$\\])(?!(?:[cmk]m|k?g|[mk]?l|ft)\b)"
    r"(?:[\w{(\\]|\s*[+/^\u00d7]|\s*\*(?!\*)|\*\*\w|\s*-\s*[A-Za-z]\b|:[0-9])"
)


def plain(text: str, reference: str) -> Verdict:
    """Judge whether the answer in the last `LONGEST_TEXT` characters of `text` is the reference.

    The reference is what is in its last box, or all of it. Raises ValueError if it is empty or
    longer than `LONGEST_ANSWER` characters.
    """
    target = _target(reference)
    answer = read(text)
    if answer is None:
        return Verdict(Status.NO_ANSWER)
    return Verdict(Status.RIGHT if same(target, form(answer)) else Status.WRONG, answer)


@lru_cache(maxsize=256)  # a group's responses have the same reference
def _target(reference: str) -> Form:
    target = _last_box(reference) if _BOX.search(reference) else reference
    if not target or len(target) > LONGEST_ANSWER or (read_as := form(target)).empty:
        raise ValueError(
            f"the reference answer {reference[:60]!r} is empty or has more than {LONGEST_ANSWER} "
            "characters"
        )
    return read_as


def read(text: str) -> str | None:
    """Return the answer that a text gives, as it is written there, or None if it gives none."""
    text = text[-LONGEST_TEXT:]
    if _BOX.search(text):
        answer = _last_box(text)
    else:
        answer = _marked(text)
        if answer is None:
            answer = _last_number(text)
    answer = (answer or "").strip()
    return answer if 0 < len(answer) <= LONGEST_ANSWER else None


def _last_box(text: str) -> str | None:
    """Return what is in the last box, or None if that box is not closed: its end is cut off."""
    start = deque(_BOX.finditer(text), maxlen=1)[0].end()
    if not text.startswith("{", start):
        match = _UNBRACED.match(text, start)
        return match[0] if match else None
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start + 1 : brace.start()]
    return None


def _marked(text: str) -> str | None:
    """Return the sentence or formula after the last mark, "" if nothing follows.

    Return None if there is no mark, or the beginning of an explanation follows.
    """
    marks = deque(_MARK.finditer(text), maxlen=1)
    if not marks:
        return None
    rest = text[marks[0].end() :].lstrip(" \t\r\n:*")[: 2 * LONGEST_ANSWER]
    if display := _DISPLAY.match(rest):
        return display[1] or display[2]
    line = rest.split("\n", 1)[0]
    sentence = _SENTENCE_END.split(line, maxsplit=1)[0]
    formulas: list[tuple[str, str]] = _FORMULA.findall(sentence)
    if len(formulas) == 1:
        return formulas[0][0] or formulas[0][1]
    return None if _PROSE.match(sentence) else sentence.replace("**", "")


def _last_number(text: str) -> str | None:
    """Return the last number with its sign, currency and percent sign, if it stands alone."""
    tokens = deque(_TOKEN.finditer(text), maxlen=1)
    if not tokens:
        return None
    start, token = tokens[0].start(), tokens[0][0].rstrip(".,/")
    if not _WHOLE_TOKEN.fullmatch(token):  # a list without blanks: 3,5
        head, comma, token = token.rpartition(",")
        start += len(head) + len(comma)
        if not comma or not _WHOLE_TOKEN.fullmatch(token):
            return None
        return token
    head = text[max(0, start - 20) : start].replace("\N{MINUS SIGN}", "-")
    tail = text[start + len(token) :][:20]
    before = _BEFORE.search(head)
    if before is None or _STUCK_AFTER.match(tail):
        return None
    sign = before[1].replace(" ", "")
    context = head[: before.start(1)].rstrip()
    if _OPERATOR_BEFORE.search(context) or ("-" in sign and _TERM_BEFORE.search(context)):
        return None
    return sign + token + ("%" if _PERCENT_AFTER.match(tail) else "")
