"""The matches of math-verify that strict mode rejects. `mathematics` lists them."""

from __future__ import annotations

import re
from typing import Any

import sympy
from math_verify import grader
from sympy import Dummy, solve
from sympy.core.function import AppliedUndef

from mugrpo.rewards.answers import sides
from mugrpo.rewards.magnitude import huge
from mugrpo.rewards.reading import Reading, equal, read_whole

_FAR = 1e-3  # relative difference above which two numbers differ, however small both are
_SIDE_BY_SIDE = re.compile(r"\d \d")
_BASE = re.compile(r"\d_\{(\d+)\}")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")


_MATRICES = (sympy.MatrixBase, sympy.MatrixExpr)


def loose(target: Reading, reading: Reading) -> bool:
    """Return whether strict mode rejects this match of math-verify."""
    if _SIDE_BY_SIDE.search(reading.text) and not _SIDE_BY_SIDE.search(target.text):
        return True
    if not _bases(reading) <= (_bases(target) or {"10"}) or _anagram(target.text, reading.text):
        return True
    if (r"\equiv" in target.text) != (r"\equiv" in reading.text):
        return True
    gold, answer = target.value, reading.value
    if any(isinstance(value, _MATRICES) for value in (gold, answer)):
        return False
    if isinstance(gold, str) or isinstance(answer, str) or huge(answer):
        return False
    if _compares(answer) and not _compares(gold) and not isinstance(gold, sympy.Set):
        return True
    if not _consistent(gold, answer, sides(reading.text)):
        return True
    zeros = [_zero(gold), _zero(answer)]
    if None not in zeros:
        same = equal(zeros[:1], zeros[1:]) or equal(zeros[:1], [-zeros[1]])
        return not same and not solve(gold, gold.free_symbols)
    if _compares(gold):
        return False
    gold, answer = _bare(gold), _bare(answer)
    return _shape(gold) != _shape(answer) or _far(gold, answer)


def _anagram(target: str, answer: str) -> bool:
    """Return whether a word of `target` has only its letters in `answer`: act for cat."""
    ours, theirs = (set(map(str.casefold, _WORD.findall(text))) for text in (target, answer))
    letters = [
        {"".join(sorted(word)) for word in words} for words in (ours - theirs, theirs - ours)
    ]
    return bool(letters[0] & letters[1])


def _compares(value: Any) -> bool:
    return bool(grader.is_relation(value)) and not grader.is_equation(value)


def _bases(reading: Reading) -> set[str]:
    return set(_BASE.findall(reading.text))


def _consistent(gold: Any, answer: Any, chain: list[str]) -> bool:
    """Return whether all sides of a chain of equalities have the value of the last one.

    A name on the left may stand for any value.
    """
    if isinstance(answer, sympy.FiniteSet):
        relations = [entry for entry in answer.args if grader.is_relation(entry)]
        named = [entry.lhs for entry in relations if grader.is_assignment_relation(entry)]
        one_name = len({str(name).partition("_")[0] for name in named}) == 1  # x_1 and x_2 are x
        gold_relations = isinstance(gold, sympy.FiniteSet) and any(
            map(grader.is_relation, gold.args)
        )
        return gold_relations or not relations or (one_name and len(named) == len(relations))
    if len(chain) == 1:
        return True
    first, *middle, last = (read_whole(side) for side in chain)
    if first is None or last is None or None in middle:
        return False
    if not all(equal(last.values, side.values) for side in middle if side is not None):
        return False
    return grader.is_equation(gold) or _name(first) or equal(last.values, first.values)


def _name(reading: Reading) -> bool:
    """Return whether `reading` can stand for an unknown: x, a+b, f(2), |AB|, but not 2x."""
    if reading.text.replace(" ", "").isalpha():
        return True
    if isinstance(reading.value, str):
        return not any(map(str.isdigit, reading.text))
    value = reading.value
    if isinstance(value, sympy.Interval):  # math-verify reads (x, y) as one
        value = sympy.Tuple(value.start, value.end)
    if isinstance(value, sympy.Basic):
        value = value.replace(lambda part: isinstance(part, AppliedUndef), lambda part: Dummy())
        value = value.xreplace({sympy.E: Dummy()})
    return bool(grader.is_expr_of_only_symbols(value))


def _zero(value: Any) -> Any:
    """Return lhs - rhs of an equation between expressions, or None if `value` is not one."""
    if isinstance(value, sympy.Eq) and all(isinstance(side, sympy.Expr) for side in value.args):
        return value.lhs - value.rhs
    return None


def _bare(value: Any) -> Any:
    """Return the right side of an equation, and anything else unchanged."""
    return grader.take_last_relation(value).rhs if grader.is_equation(value) else value


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
    difference, size = (sympy.N(abs(value)) for value in (answer - gold, gold))
    return bool(difference > _FAR * size)
