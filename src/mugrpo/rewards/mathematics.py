"""Equality of mathematical answers: math-verify, with rules around it.

Strict mode reads the last box as a whole. Without a box, it reads the text as math-verify does.
Boxes that only "and", "or" or a comma separates are one answer, a list. If a reference has several
boxes apart from each other, all of them are required, in their order.

A word is compared as text, and a unit by a table (`units`); docs/verification.md lists the rules.
Strict mode rejects a match of math-verify (`strictness`) if

- a side of a chain of equalities has another value: x=7=12 for 12, or 2x=12 (x is 6);
- a set stands for a tuple or an interval, or vice versa: {1,2} for (1,2);
- two numbers agree only because both are small: 0.0000002 for 0.0000001;
- two words have the same letters: act for cat;
- a factor is missing that math-verify takes for a unit: 2 for 2m;
- numbers stand side by side (1 2, read as 1 + 2), or have another base (12_9 for 12_8);
- two equations match only because neither has a solution.

Numbers too large to compute (`magnitude`) equal only those written the same way. A verdict depends
on nothing but text and reference: sympy's random numbers begin anew at each call.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy
from math_verify import grader
from sympy.core.random import seed

from mugrpo.disk.records import Status
from mugrpo.rewards.notation import GAP, boxes, elements, latex, round_brackets
from mugrpo.rewards.reading import Reading, equal, read_text, read_whole, solutions
from mugrpo.rewards.strictness import loose
from mugrpo.rewards.units import spelled, split_unit, word
from mugrpo.rewards.verdict import Verdict

LONGEST_TEXT = 4000  # characters at the end of a response that are read

_SPACED_THOUSANDS = re.compile(rf"(?<![\d.])(\d{{1,3}})((?:{GAP}\d{{3}})+)(?!\d)")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d+)(?!\w)")
_MINUS_APART = re.compile(r"(\bis|[:=])\s*-\s+(?=[\d.])")
_LAST_DOT = re.compile(r"(?<!\.)\.\s*$")
_FORMULA = re.compile(r"(?<!\\)\$.*[^\\]\$|\\\(|\\\[|\\boxed|\\fbox", re.DOTALL)


class Mathematics:
    """The verifier that compares the last `LONGEST_TEXT` characters of a text with the reference.

    Calling it raises ValueError if math-verify cannot read the reference.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._reference = lru_cache(maxsize=256)(self._read_reference)
        self(r"$\frac{1}{2}$", "0.5")  # loads now what math-verify would load at its first use

    def __call__(self, text: str, reference: str) -> Verdict:
        seed(0)
        targets = self._reference(reference)
        text = text[-LONGEST_TEXT:]
        if not self._strict:
            answer = read_text(text)
            right = answer is not None and equal(targets[0].values, answer.values)
            return _verdict(right, [answer])
        answers = _answers(text, len(targets))
        right = len(answers) == len(targets) and all(map(_agree, targets, answers))
        return _verdict(right, answers)

    def _read_reference(self, reference: str) -> list[Reading]:
        boxed = reference if _FORMULA.search(reference) else rf"\boxed{{{reference}}}"
        if self._strict:
            readings = _answers(boxed, max(1, len(boxes(boxed))))
        else:
            readings = [read_text(boxed) or read_text(reference)]
        known = [reading for reading in readings if reading is not None]
        if not known or len(known) < len(readings):
            raise ValueError(f"math-verify cannot read the reference answer {reference!r}")
        return known


def _verdict(right: bool, answers: list[Reading | None]) -> Verdict:
    known = [f"{answer.text} {answer.unit}".strip() for answer in answers if answer is not None]
    if not known:
        return Verdict(Status.NO_ANSWER)
    return Verdict(Status.RIGHT if right else Status.WRONG, ", ".join(known))


def _answers(text: str, count: int) -> list[Reading | None]:
    """Return the last `count` answers in a text.

    These are its last groups of boxes, or if there are fewer, the last boxes, or the elements of
    the last box. Without a box, it is what math-verify finds.
    """
    text = _MINUS_APART.sub(r"\1 -", latex(text))
    dollar = "" if _FORMULA.search(text) else "$"
    text = _SCIENTIFIC.sub(rf"{dollar}\1 \\cdot 10^{{\2}}{dollar}", text)
    groups = boxes(text)
    if not groups:
        return [_read_plain(text)]
    lists = [", ".join(dict.fromkeys(group)) for group in groups]
    if count > len(lists):
        lists = [box for group in groups for box in group]
    if count > len(lists):
        lists = elements(lists[-1])
    return [_read_box(content) for content in lists[-count:]]


def _read_plain(text: str) -> Reading | None:
    """Return the reading of a text without a box, and the unit at its end."""
    reading = read_text(text)
    if reading is None:
        return None
    percent = grader.get_pct_val(reading.value)
    if percent is not None:
        return replace(reading, values=[percent], unit="%")
    return replace(reading, unit=split_unit(text)[1].replace("%", ""))


def _read_box(content: str) -> Reading | None:
    """Return the reading of what a box holds, without its unit."""
    content, unit = split_unit(_LAST_DOT.sub("", content))
    content = _SPACED_THOUSANDS.sub(_joined, re.sub(r"\\?\$", "", content))
    content = round_brackets(content)
    reading = read_whole(content) if content.strip() else None
    return reading and replace(reading, unit=unit)


def _joined(thousands: re.Match[str]) -> str:
    return thousands[1] + "".join(re.findall(r"\d{3}", thousands[2]))


def _agree(target: Reading, answer: Reading | None) -> bool:
    """Return whether an answer equals its reference by all rules."""
    if answer is None:
        return False
    if target.text == answer.text and target.unit == answer.unit:
        return True
    if word(target.text):
        return spelled(target.text) == spelled(answer.text)
    if target.unit == answer.unit:
        return _same(target, answer)
    if target.unit and answer.unit:
        return False
    if "%" not in (target.unit, answer.unit):
        return _same(target, answer)
    if _same(*map(_in_parts_of_1, (target, answer))):
        return True
    return _at_least_1(answer.value) and _same(target, answer)


def _same(target: Reading, answer: Reading) -> bool:
    if isinstance(target.value, sympy.Interval | sympy.Union):
        answer = replace(answer, values=[solutions(answer.value) or answer.value])
    return equal(target.values, answer.values) and not loose(target, answer)


def _in_parts_of_1(reading: Reading) -> Reading:
    if reading.unit != "%" or not isinstance(reading.value, sympy.Expr):
        return reading
    return replace(reading, values=[reading.value / 100])


def _at_least_1(value: Any) -> bool:
    """Return whether a number without a percent sign may be one in percent: 50, but not 0.5."""
    return isinstance(value, sympy.Number) and bool(abs(value) >= 1)
