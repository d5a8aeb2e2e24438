"""Equality of mathematical answers: math-verify, with rules around it.

An answer is read and taken apart as docs/verification.md says (`response`, `answers`). What text,
units and words do not settle, math-verify compares. Strict mode rejects a match of math-verify
(`strictness`) if

- a side of a chain of equalities has another value: x=7=12 for 12, or 2x=12 (x is 6);
- a set stands for a tuple or an interval, or vice versa: {1,2} for (1,2);
- two numbers agree only because both are small: 0.0000002 for 0.0000001;
- two words have the same letters: act for cat;
- numbers stand side by side (1 2, read as 1 + 2), or have another base (12_9 for 12_8);
- two equations match only because neither has a solution.

If a reference has several boxes apart from each other, all of them are required, in their order.
Numbers too large to compute (`magnitude`) equal only those written the same way. A verdict depends
on nothing but text and reference: sympy's random numbers begin anew at each call.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy
from sympy.core.random import seed

from mugrpo.disk.records import Status
from mugrpo.rewards.answers import Answer, last, paired, read, read_number, settled, targets
from mugrpo.rewards.forms import exact_number
from mugrpo.rewards.reading import Reading, equal, read_prose, read_text, read_whole, solutions
from mugrpo.rewards.response import answer_part, denied, find, reference_part
from mugrpo.rewards.strictness import loose
from mugrpo.rewards.units import TELLING
from mugrpo.rewards.verdict import Verdict

_RELATION = re.compile(r"[<>]|\\(?:[lg]e|ne)(?![a-z])")
LONGEST_PROSE = 4000  # characters at the end of a text without a box that math-verify reads


class Mathematics:
    """The verifier that compares the answer in a text with the reference.

    Calling it raises ValueError if the reference is empty, or math-verify alone cannot read it.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._targets = lru_cache(maxsize=256)(targets)
        self(r"$\frac{1}{2}$", "0.5")  # loads now what math-verify would load at its first use

    def __call__(self, text: str, reference: str) -> Verdict:
        seed(0)
        if not self._strict:
            return _by_math_verify(text, reference)
        expected = self._targets(reference)
        found = find(text)
        if found is None:
            return Verdict(Status.NO_ANSWER)
        if not found:
            return _in_prose(text, expected)
        pieces = last(found, len(expected))
        answers = list(map(read, pieces))
        right = len(answers) == len(expected) and all(map(_agree, expected, answers))
        return _verdict(right, ", ".join(pieces))


def _verdict(right: bool, answer: str) -> Verdict:
    return Verdict(Status.RIGHT if right else Status.WRONG, answer.strip())


def _by_math_verify(text: str, reference: str) -> Verdict:
    groups = reference_part(reference)
    target = read_text(rf"\boxed{{{groups[-1][0]}}}") if groups else None
    if target is None:
        raise ValueError(f"math-verify cannot read the reference answer {reference!r}")
    answer = read_text(answer_part(text)[-LONGEST_PROSE:])
    if answer is None:
        return Verdict(Status.NO_ANSWER)
    return _verdict(equal(target.values, answer.values), answer.text)


def _in_prose(text: str, expected: list[Answer]) -> Verdict:
    """Judge what math-verify finds in a text that does not say what its answer is."""
    text = answer_part(text)[-LONGEST_PROSE:]
    reading = read_prose(text)
    if reading is None:
        return Verdict(Status.NO_ANSWER)
    before, _, tail = text.rpartition(reading.text)
    if denied(before):
        return _verdict(False, reading.text)
    answer, written = read_number(reading.text, tail if before or tail != text else "")
    if answer.core != read(reading.text).core:  # a number word multiplies it
        reading = read_whole(answer.core) or reading
    answer = replace(answer, words=answer.words & TELLING)
    right = len(expected) == 1 and _agree(expected[0], answer, reading)
    return _verdict(right, written)


def _agree(target: Answer, answer: Answer, reading: Reading | None = None) -> bool:
    """Return whether an answer equals its reference by all rules."""
    right = settled(target, answer)
    if right is not None:
        return right
    if (pairs := paired(target, answer)) is not None:
        return bool(pairs) and all(_agree(*pair) for pair in pairs)
    if (alike := _solutions(target.core, answer.core)) is not None:
        return alike
    ratios = [one.core.rpartition("=")[2].split(":") for one in (target, answer)]
    if max(map(len, ratios)) > 2:
        return _in_proportion(*ratios)
    ours, theirs = read_whole(target.core), reading or read_whole(answer.core)
    if ours is None or theirs is None:
        return False
    if target.unit == answer.unit or "%" not in (target.unit, answer.unit):
        number = exact_number(target.value)  # math-verify rounds: 602 10^21 and 6.02 10^23
        return (number is not None and number == exact_number(answer.value)) or _same(ours, theirs)
    parts = [_in_parts_of_1(r, a.unit) for r, a in ((ours, target), (theirs, answer))]
    return _same(*parts) or (_at_least_1(theirs.value) and _same(ours, theirs))


def _solutions(target: str, answer: str) -> bool | None:
    """Return whether two sets of real numbers are the same, or None if one of them is none."""
    ours, theirs = _solution_set(target), _solution_set(answer)
    if ours is None or theirs is None:
        return None
    if ours == theirs:
        return True
    if not (isinstance(ours, sympy.Interval) and isinstance(theirs, sympy.Interval)):
        return False
    return equal([ours], [theirs]) and not loose(Reading([ours], target), Reading([theirs], answer))


def _solution_set(core: str) -> Any:
    r"""Return the set that an interval or inequalities describe, or None.

    \vee is "or", \wedge "and". A comma is "and" if some number fulfills both: x>0,x\ne1.
    """
    pieces = re.split(r"\\vee ?|\\wedge ?|,", core) if _RELATION.search(core) else [core]
    readings = [read_whole(piece) for piece in pieces]
    names = {name for r in readings if r for name in getattr(r.value, "free_symbols", ())}
    sets = [solutions(reading.value) if reading else None for reading in readings]
    if None in sets or len(names) > 1:
        return None
    if r"\vee" in core:
        return None if r"\wedge" in core or "," in core else sympy.Union(*sets)
    common = sympy.Intersection(*sets)
    if r"\wedge" in core or common is not sympy.S.EmptySet:
        return common
    return sympy.Union(*sets)


def _in_proportion(target: list[str], answer: list[str]) -> bool:
    """Return whether two ratios of several numbers are the same: 1:2:3 and 2:4:6."""
    ours, theirs = ([read_whole(part) for part in ratio] for ratio in (target, answer))
    if len(ours) != len(theirs) or None in ours or None in theirs:
        return False
    values = [(a.value, b.value) for a, b in zip(ours, theirs, strict=True) if a and b]
    first, second = values[0]
    if any(isinstance(value, str) for pair in values for value in pair):
        return False
    return all(equal([a * second], [b * first]) for a, b in values)


def _same(target: Reading, answer: Reading) -> bool:
    return equal(target.values, answer.values) and not loose(target, answer)


def _in_parts_of_1(reading: Reading, unit: str) -> Reading:
    if unit != "%" or not isinstance(reading.value, sympy.Expr):
        return reading
    return replace(reading, values=[reading.value / 100])


def _at_least_1(value: Any) -> bool:
    """Return whether a number without a percent sign may be one in percent: 50, but not 0.5."""
    return isinstance(value, sympy.Number) and bool(abs(value) >= 1)
