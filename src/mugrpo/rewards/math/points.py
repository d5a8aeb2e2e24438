"""Whether numbers at a few points show that two values differ. They prove no two equal.

It takes milliseconds, where sympy simplifies or solves for minutes: pairs of general solutions of
differential equations, roots within roots.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy.core.function import AppliedUndef

# Of the first letter, and by how much each further one is larger. Small ones have an arcsin.
_STARTS = ((0.11, 0.07), (0.83, 0.29), (1.27, 0.41))
_DIGITS = 30
_APART = 1e-5  # relative difference that no rounding explains: math-verify rounds to 6 decimals
_LONG = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Derivative, sympy.Limit)
_Point = dict[Any, Any]


def apart(gold: Any, answer: Any) -> bool:
    """Return whether two expressions have different values at a point.

    Of two equations, whether a solution of one does not solve the other, or only one has a sum or
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
