"""What numbers at a few points tell about two expressions or equations, by hand."""

from __future__ import annotations

import sympy
from sympy.abc import C, x, y

from mugrpo.rewards.math.mathematics import apart
from tests.cases import table

Y = sympy.Function("y")(x)
ALIKE = [
    (x**2 - 1, (x - 1) * (x + 1)),
    (sympy.Eq(y, 2 * x), sympy.Eq(3 * y - 6 * x, 0)),
    (sympy.Eq(y, C * sympy.exp(x)), C * sympy.exp(x)),  # the right side stands for an equation
    (sympy.Eq(x * (x - 1), 0), sympy.Eq(x, 0)),  # each solution of x=0 solves it: no proof
    (sympy.log(x - 2) - sympy.log(x - 3), sympy.log((x - 2) / (x - 3))),  # not real at the points
    (sympy.Rational(1, 3), sympy.Float("0.333333")),  # as much as math-verify rounds away
    (sympy.Sum(1 / x**2, (x, 1, sympy.oo)), sympy.pi**2 / 6),
    (1 / sympy.Symbol("z", zero=True), x),  # no number at all
]
APART = [
    (x**2 + 1, x**2 + 2),
    (sympy.Eq(y, 2 * x), sympy.Eq(y, 2 * x + 1)),
    (sympy.Eq(y, C * sympy.exp(x)), sympy.Eq(sympy.sin(y), C * sympy.cos(x))),
    (sympy.Eq(Y, C * x), sympy.Eq(Y, C * x**2)),
    (sympy.Eq(y, 3 * x), 2 * x),
    (sympy.sqrt(2 + sympy.sqrt(3)), sympy.sqrt(2 + sympy.sqrt(5))),
    (2 + 3 * sympy.I, 2 - 3 * sympy.I),
]


@table(("one", "other"), ALIKE)
def test_equal_values_are_nowhere_apart(one, other):
    assert not apart(one, other) and not apart(other, one)


@table(("one", "other"), APART)
def test_values_that_differ_are_apart_at_some_point(one, other):
    assert apart(one, other) and apart(other, one)
