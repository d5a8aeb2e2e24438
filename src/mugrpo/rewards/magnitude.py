"""The size of the numbers in an expression, estimated before anything computes them."""

from __future__ import annotations

import math
from typing import Any

import sympy
from sympy.functions.combinatorial.factorials import CombinatorialFunction

_MOST_BITS = 1_000_000.0  # computing and comparing numbers of this size takes milliseconds


def huge(value: Any) -> bool:
    """Return whether numbers of more than `_MOST_BITS` bits arise if `value` is evaluated."""
    return _bits(value) > _MOST_BITS


def _bits(value: Any) -> float:
    """Return an upper bound for the bits of the numbers that arise in evaluating `value`.

    Symbols and anything that is not an expression count as 1.
    """
    if isinstance(value, sympy.MatrixBase):
        return max((_bits(entry) for entry in value.flat()), default=1.0)
    if not isinstance(value, sympy.Basic) or not value.args:
        return _bits_of_number(value)
    parts = [_bits(part) for part in value.args]
    if isinstance(value, sympy.Pow) and not value.exp.free_symbols:
        return max(*parts, parts[0] * _size(value.exp, parts[1]))
    if isinstance(value, CombinatorialFunction) and not value.free_symbols:
        return max(*parts, 0.0, parts[0] * _size(value.args[-1], parts[-1]))
    return math.fsum(parts)


def _bits_of_number(value: Any) -> float:
    match value:
        case sympy.Rational():
            return float(max(int(value.p).bit_length(), int(value.q).bit_length()))
        case sympy.Float() if value:
            _, _, exponent, bits = value._mpf_
            return max(1.0, float(abs(int(exponent) + int(bits))))
    return 1.0


def _size(value: Any, bits: float) -> float:
    """Return an upper bound for the absolute value of an expression whose numbers have `bits`."""
    if isinstance(value, sympy.Number) and value.is_finite:
        return float(min(abs(value), 2**64))
    return math.exp2(min(bits, 64.0))
