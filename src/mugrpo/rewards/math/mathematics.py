"""Equality of mathematical answers: math-verify, with rules around it.

An answer is read and taken apart as docs/rewards.md says (`response`, `answers`). What text,
units and words do not settle, math-verify compares, unless numbers show that values differ
(`apart`). Its match does not count (`_loose`) if

- a side of a chain of equalities has another value: x=7=12 for 12, or 2x=12 (x is 6);
- a set stands for a tuple or an interval, or vice versa: {1,2} for (1,2);
- two numbers agree only because both are small: 0.0000002 for 0.0000001;
- numbers stand side by side (1 2, read as 1 + 2), or have another base (12_9 for 12_8);
- two equations match only because neither has a solution.

If a reference has several boxes apart from each other, all of them are required, in their order.
Numbers too large to compute (`_huge`) equal only those written the same way. A verdict depends
on nothing but text and reference: sympy's random numbers begin anew at each call.
"""

import logging
import re
import sys
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, grader, parse, parser, verify
from sympy.core.function import AppliedUndef
from sympy.core.random import seed
from sympy.core.relational import Relational
from sympy.functions.combinatorial.factorials import CombinatorialFunction

from mugrpo.disk.records import Status
from mugrpo.rewards.math.answers import (
    MathAnswer,
    agree,
    exact_number,
    last,
    read,
    targets,
    with_point,
)
from mugrpo.rewards.math.names import elements, named_otherwise
from mugrpo.rewards.math.response import find, last_said
from mugrpo.rewards.verdict import Verdict, verdict

_LARGEST = 10_000  # exponents and arguments of factorials: computing these takes milliseconds


def _huge(value: Any) -> bool:
    """Return whether a power or a factorial in `value` is too large to compute."""
    if isinstance(value, sympy.MatrixBase):
        return any(map(_huge, value.flat()))
    if not isinstance(value, sympy.Basic):
        return False
    if any(map(_huge, value.args)):
        return True
    if not isinstance(value, sympy.Pow | CombinatorialFunction) or value.free_symbols:
        return False
    return not bool(abs(sympy.N(value.args[-1])) <= _LARGEST)


# math-verify treats any exception as "not equal". It looks up `Exception` in its modules, so this
# replacement stops it from catching what says nothing about the answer: out of memory or stack.
_ORDINARY = tuple(
    {*Exception.__subclasses__(), *RuntimeError.__subclasses__()}
    - {MemoryError, RuntimeError, RecursionError}
)
_module: Any
for _module in (grader, parser, sys.modules[parser.latex2sympy.__module__]):
    _module.Exception = _ORDINARY
logging.getLogger("math_verify").setLevel(logging.ERROR)


class Reading(NamedTuple):
    """Mathematics as math-verify reads it: its values, and the text that it read."""

    values: list[Any]
    text: str

    @property
    def value(self) -> Any:
        return self.values[0]


# Units, words and looks are gone before math-verify reads: its own way drops any word of a list.
_CONFIG = LatexExtractionConfig(
    boxed_match_priority=0,
    normalization_config=NormalizationConfig(malformed_operators=True, nits=True, boxed="last"),
)


@lru_cache(maxsize=512)
def _read_whole(mathematics: str) -> Reading | None:
    """Return the reading of mathematics in the one notation as a whole.

    Return None if it makes no sense as a whole, rather than pick a number out of it.
    """
    if not mathematics.strip():
        return None
    if mathematics.count(r"\pm") == 1 and not re.search(r"[,;]|\\\{", mathematics):
        mathematics = ",".join(mathematics.replace(r"\pm", sign) for sign in "+-")
    # A comma of the one notation separates: math-verify would take 1,200 for a number.
    boxed = rf"\boxed{{{mathematics.replace(',', ', ')}}}"
    values = parse(boxed, [_CONFIG], extraction_mode="first_match", parsing_timeout=None)
    return Reading([_evaluated(values[0]), *values[1:]], mathematics) if values else None


def _evaluated(value: Any) -> Any:
    """Return a value with i as the imaginary unit, each other letter as one symbol, and remainders.

    math-verify has a symbol i, and two symbols of each name: real ones, and others beside some i.
    An i that has a value or counts terms is left as it is.
    """
    if not isinstance(value, sympy.Basic) or _huge(value):
        return value
    names = value.atoms(sympy.Symbol)
    counts = value.has(sympy.Sum, sympy.Product, sympy.Integral)
    counts |= any(str(relation.lhs) == "i" for relation in value.atoms(Relational))
    new = {name: sympy.Symbol(name.name, real=True) for name in names if name.is_real is False}
    unit = {name: sympy.I for name in names if name.name == "i" and not counts}
    if unit and isinstance(value, sympy.Interval) and value.is_open:
        value = sympy.Tuple(value.start, value.end)  # (1, 2i)
    new |= unit
    new |= {mod: sympy.Mod(*mod.args) for mod in value.atoms(sympy.Mod)}
    return value.xreplace(new)


def _equal(target: list[Any], answer: list[Any]) -> bool:
    """Return whether math-verify finds values equal. Huge ones are compared as written."""
    if _huge(target[0]) or _huge(answer[0]):
        return bool(target[0] == answer[0])
    if apart(target[0], answer[0]):
        return False
    return bool(verify(target, answer, timeout_seconds=None))


# Of the first letter, and by how much each further one is larger. Small ones have an arcsin.
_STARTS = ((0.11, 0.07), (0.83, 0.29), (1.27, 0.41))
_DIGITS = 30
_APART = 1e-5  # relative difference that no rounding explains: math-verify rounds to 6 decimals
_LONG = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Derivative, sympy.Limit)
_Point = dict[Any, Any]


def apart(gold: Any, answer: Any) -> bool:
    """Return whether two expressions have different values at a point. No two are proved equal.

    It takes milliseconds, where sympy simplifies or solves for minutes: general solutions of
    differential equations, roots within roots.

    Two equations differ if a solution of one does not solve the other, or if only one has a sum or
    an integral: to solve that takes too long. An equation and an expression differ if the right
    side does, for which the equation stands.
    """
    first, second = difference(gold), difference(answer)
    if first is not None and second is not None:
        if first.has(*_LONG) != second.has(*_LONG):
            return True
        return _unsolved(first, answer) or _unsolved(second, gold)
    gold, answer = (
        value if zero is None else value.rhs for value, zero in ((gold, first), (answer, second))
    )
    if any(not isinstance(side, sympy.Expr) or side.is_Symbol for side in (gold, answer)):
        return False  # math-verify compares a name with a product of letters
    return any(_unequal(gold, answer, point) for point in _points(gold, answer))


def difference(value: Any) -> Any:
    """Return lhs - rhs of an equation between expressions, or None if `value` is not one."""
    if isinstance(value, sympy.Eq) and all(isinstance(side, sympy.Expr) for side in value.args):
        return value.lhs - value.rhs
    return None


def _unsolved(zero: Any, other: Any) -> bool:
    """Return whether a point where `zero` is 0 does not solve the equation `other`.

    Only letters that `zero` is linear in are solved for.
    """
    for letter in sorted(_letters(zero), key=str):
        rest = zero.xreplace({letter: sympy.S.Zero})
        slope = zero.xreplace({letter: sympy.S.One}) - rest
        if (zero - rest - slope * letter).expand() != 0:
            continue
        for point in _points(zero, other.lhs, other.rhs):
            above, below = _value(rest, point), _value(slope, point)
            if above is None or not below or (above / below).imag:
                continue
            solution = sympy.Float(-(above / below).real, _DIGITS)
            if _unequal(other.lhs, other.rhs, point | {letter: solution}):
                return True
    return False


def _letters(*values: Any) -> set[Any]:
    """Return the symbols, and the functions of unknown form such as y(x)."""
    return {letter for value in values for letter in value.free_symbols | value.atoms(AppliedUndef)}


def _points(*values: Any) -> list[_Point]:
    """Return numbers for all letters, by their names, or nothing where points tell nothing."""
    if any(value.has(*_LONG, sympy.UnevaluatedExpr, sympy.MatrixExpr) for value in values):
        return []
    letters = sorted(_letters(*values), key=str)
    names = sorted({str(letter) for letter in letters})
    return [
        {one: sympy.Float(start + step * names.index(str(one)), _DIGITS) for one in letters}
        for start, step in (_STARTS if letters else _STARTS[:1])
    ]


def _unequal(first: Any, second: Any, point: _Point) -> bool:
    """Return whether two expressions have different numbers at a point.

    Numbers that are not real do not count if the expressions are: a branch of a logarithm may
    explain that they differ.
    """
    one, two = _value(first, point), _value(second, point)
    if one is None or two is None:
        return False
    if point and not (first.has(sympy.I) or second.has(sympy.I)) and (one.imag or two.imag):
        return False
    return abs(one - two) > _APART * max(1.0, abs(one), abs(two))


def _value(expression: Any, point: _Point) -> complex | None:
    """Return the number that an expression is at a point, or None if it is none."""
    try:
        value = complex(sympy.N(expression.xreplace(point), _DIGITS))
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return None
    return value if value - value == 0 else None  # not infinite and not nan


def _solutions(value: Any) -> Any:
    """Return the set of real numbers that a value describes, or None if it is none.

    Intervals, their unions and differences are sets; inequalities such as 1 < x <= 2 and |x| < 1
    are solved for a name already.
    """
    if isinstance(value, sympy.Interval | sympy.Union | sympy.Complement):
        if value.free_symbols:
            return None
        exact = {number: sympy.Rational(str(number)) for number in value.atoms(sympy.Float)}
        return value.xreplace(exact).doit()
    if isinstance(value, sympy.And):
        sets = [_solutions(part) for part in value.args]
        return None if None in sets else sympy.Intersection(*sets)
    if not _compares(value) or _huge(value) or len(value.free_symbols) != 1:
        return None
    name, bound = sorted((value.lhs, value.rhs), key=lambda side: side.is_number)
    if not bound.is_number or not isinstance(name, sympy.Symbol | sympy.Abs):
        return None
    return value.subs(value.free_symbols.pop(), sympy.Dummy(real=True)).as_set()


_FAR = 1e-3  # relative difference above which two numbers differ, however small both are
_SIDE_BY_SIDE = re.compile(r"\d \d")
_BASE = re.compile(r"\d_\{(\d+)\}")


def _loose(target: Reading, reading: Reading) -> bool:
    """Return whether a match of math-verify does not count."""
    if _SIDE_BY_SIDE.search(reading.text) and not _SIDE_BY_SIDE.search(target.text):
        return True
    bases, allowed = (set(_BASE.findall(one.text)) for one in (reading, target))
    if not bases <= (allowed or {"10"}):
        return True
    if (r"\equiv" in target.text) != (r"\equiv" in reading.text):
        return True
    gold, answer = target.value, reading.value
    if any(isinstance(value, sympy.MatrixBase | sympy.MatrixExpr) for value in (gold, answer)):
        return False
    if isinstance(gold, str) or isinstance(answer, str) or _huge(answer):
        return False
    if _compares(answer) and not _compares(gold) and not isinstance(gold, sympy.Set):
        return True
    if not _consistent(gold, answer, elements(reading.text, "=")):
        return True
    zeros = [difference(gold), difference(answer)]
    if None not in zeros:
        same = _equal(zeros[:1], zeros[1:]) or _equal(zeros[:1], [-zeros[1]])
        return not same and not sympy.solve(gold, gold.free_symbols)
    if _compares(gold):
        return False
    return _shape(gold) != _shape(answer) or _far(gold, answer)


def _compares(value: Any) -> bool:
    return bool(grader.is_relation(value)) and not grader.is_equation(value)


def _consistent(gold: Any, answer: Any, chain: list[str]) -> bool:
    """Return whether all sides of a chain of equalities have the value of the last one.

    A name on the left may stand for any value.
    """
    if isinstance(answer, sympy.FiniteSet):
        relations = [entry for entry in answer.args if grader.is_relation(entry)]
        named = [entry.lhs for entry in relations if grader.is_assignment_relation(entry)]
        one_name = len({str(name).partition("_")[0] for name in named}) == 1  # x_1 and x_2 are x
        if isinstance(gold, sympy.FiniteSet) and any(map(grader.is_relation, gold.args)):
            return True
        return not relations or (one_name and len(named) == len(relations))
    if len(chain) == 1:
        return True
    first, *middle, last = (_read_whole(side) for side in chain)
    if first is None or last is None or None in middle:
        return False
    if not all(_equal(last.values, side.values) for side in middle if side is not None):
        return False
    return grader.is_equation(gold) or _unknown(first.text) or _equal(last.values, first.values)


def _unknown(side: str) -> bool:
    """Return whether a side can stand for an unknown: x, a+b, f(2), |AB|, but not 2x."""
    bare = re.sub(r"[fghFGHPE]'*\([^()]*\)|_\{[^{}]*\}", "", side)
    return not re.search(r"[-0-9^]|\\(?:frac|sqrt|pi)(?![a-z])", bare)


def _shape(value: Any) -> tuple[int, int]:
    """Return the number of sets of several elements, and of tuples and intervals, in `value`."""
    if not isinstance(value, sympy.Basic):
        return 0, 0
    parts = list(sympy.preorder_traversal(value))
    sets = [part for part in parts if isinstance(part, sympy.FiniteSet) and len(part) > 1]
    return len(sets), sum(isinstance(part, sympy.Tuple | sympy.Interval) for part in parts)


def _far(gold: Any, answer: Any) -> bool:
    """Return whether two matching numbers are far apart for their size. Percentages never are."""
    if isinstance(gold, sympy.Interval) and isinstance(answer, sympy.Interval):
        return _far(gold.start, answer.start) or _far(gold.end, answer.end)
    for value in (gold, answer):
        if not getattr(value, "is_number", False) or value.has(sympy.UnevaluatedExpr):
            return False
    # As sympy's floats, whose exponents have no limit: 10^-400 is no 0.0
    # As numbers first: sympy takes seconds to find the sign of nested roots
    apart_by, size = (abs(sympy.N(value)) for value in (answer - gold, gold))
    return bool(apart_by > _FAR * size)


_RELATION = re.compile(r"[<>]|\\(?:[lg]e|ne)(?![a-z])")


# Not math-verify alone: it finds {1,2} equal to (1,2), 0.0000002 to 0.0000001 and act to cat, and
# each such verdict is a gradient in the wrong direction. tests/rewards/verification.toml has cases.
class Mathematics:
    """The verifier that compares the answer in a text with the reference.

    Calling it raises ValueError if the reference is empty or too long.
    """

    def __init__(self) -> None:
        self(r"$\frac{1}{2}$", "0.5")  # loads now what math-verify would load at its first use

    def __call__(self, text: str, reference: str) -> Verdict:
        seed(0)
        expected = targets(reference)
        found = find(text)
        if found == []:
            said = last_said(text)
            found = [[said]] if said else None
        if found is None:
            return Verdict(Status.NO_ANSWER)
        pieces = last(found, len(expected))
        right = len(pieces) == len(expected) and all(
            agree(target, read(with_point(piece, target)), _comparable)
            for target, piece in zip(expected, pieces, strict=True)
        )
        return verdict(right, ", ".join(pieces).strip())


# What sympy raises on values that it cannot compare: i < 2, an interval up to i
_INCOMPARABLE = (
    *(TypeError, ValueError, ArithmeticError, AttributeError, LookupError),
    *(AssertionError, NotImplementedError),
)


def _comparable(target: MathAnswer, answer: MathAnswer) -> bool:
    """Return whether two answers have equal values. Those that cannot be compared have not."""
    try:
        return _same_values(target, answer)
    except _INCOMPARABLE:
        return False


def _same_values(target: MathAnswer, answer: MathAnswer) -> bool:
    """Return whether two answers have equal values."""
    values = target.value, answer.value
    named = target.name and answer.name and not named_otherwise(target.name, answer.name, "")
    if named and not any(target.name[0] in value for value in values):
        target, answer = (replace(one, core=one.value, name="") for one in (target, answer))
    if (alike := _same_solutions(target, answer)) is not None:
        return alike
    ratios = [one.core.rpartition("=")[2].split(":") for one in (target, answer)]
    if max(map(len, ratios)) > 2:
        first, second = ([exact_number(part) or 0 for part in ratio] for ratio in ratios)
        if len(first) != len(second) or 0 in first + second:
            return False
        return all(a * second[0] == b * first[0] for a, b in zip(first, second, strict=True))
    ours, theirs = _read_whole(target.core), _read_whole(answer.core)
    if ours is None or theirs is None:
        return False
    if target.unit == answer.unit or "%" not in (target.unit, answer.unit):
        number = exact_number(target.value)  # math-verify rounds: 602 10^21 and 6.02 10^23
        return (number is not None and number == exact_number(answer.value)) or _same(ours, theirs)
    percent, plain = (ours, theirs) if target.unit == "%" else (theirs, ours)
    if isinstance(percent.value, sympy.Expr):
        if _same(Reading([percent.value / 100], percent.text), plain):
            return True
        if not (isinstance(plain.value, sympy.Number) and abs(plain.value) >= 1):
            return False  # 50 may be meant in percent, but not 0.5
    return _same(ours, theirs)


def _same_solutions(target: MathAnswer, answer: MathAnswer) -> bool | None:
    """Return whether two sets of real numbers are the same, or None if one of them is none."""
    (ours, name), (theirs, other) = _solution_set(target.core), _solution_set(answer.core)
    if ours is None or theirs is None:
        return None
    if named_otherwise(target.name or name, answer.name or other, ""):
        return False
    if ours == theirs:
        return True
    if not (isinstance(ours, sympy.Interval) and isinstance(theirs, sympy.Interval)):
        return False
    return _same(Reading([ours], target.core), Reading([theirs], answer.core))


def _solution_set(core: str) -> tuple[Any, str]:
    r"""Return the set that an interval or inequalities describe, or None, and the name in it.

    \vee is "or", \wedge "and". A comma is "and" if some number fulfills both: x>0,x\ne1.
    """
    pieces = re.split(r"\\vee ?|\\wedge ?|,", core) if _RELATION.search(core) else [core]
    readings = [_read_whole(piece) for piece in pieces]
    names = {name for r in readings if r for name in getattr(r.value, "free_symbols", ())}
    sets = [_solutions(reading.value) if reading else None for reading in readings]
    if None in sets or len(names) > 1:
        return None, ""
    name = str(*names)
    if r"\vee" in core:
        return None if r"\wedge" in core or "," in core else sympy.Union(*sets), name
    common = sympy.Intersection(*sets)
    if r"\wedge" in core or common is not sympy.S.EmptySet:
        return common, name
    return sympy.Union(*sets), name


def _same(target: Reading, answer: Reading) -> bool:
    return _equal(target.values, answer.values) and not _loose(target, answer)
