"""Values that math-verify reads in a text."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from functools import reduce
from typing import Any

import sympy
from math_verify import LatexExtractionConfig, grader, parse, parser, verify

from mugrpo.rewards.magnitude import huge


def _ordinary() -> tuple[type[Exception], ...]:
    """Return all exception types except MemoryError, RecursionError and RuntimeError itself."""
    direct = [c for c in Exception.__subclasses__() if c not in (MemoryError, RuntimeError)]
    return (*direct, *(c for c in RuntimeError.__subclasses__() if c is not RecursionError))


# math-verify treats any exception as "not equal". It looks up `Exception` in its modules, so this
# replacement stops it from catching what says nothing about the answer: out of memory or stack.
_module: Any
for _module in (grader, parser, sys.modules[parser.latex2sympy.__module__]):
    _module.Exception = _ordinary()
logging.getLogger("math_verify").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Reading:
    """An answer read in a text: math-verify's values, the piece of text, and the unit after it."""

    values: list[Any]
    text: str
    unit: str = ""

    @property
    def value(self) -> Any:
        return self.values[0]


def read_text(text: str) -> Reading | None:
    """Return what math-verify finds in a text, or None if it finds nothing."""
    values = parse(text, parsing_timeout=None)
    return Reading(values, str(values[-1]).strip()) if values else None


def read_whole(mathematics: str) -> Reading | None:
    """Return the reading of a piece of LaTeX as a whole.

    Return None if it makes no sense as a whole, rather than pick a number out of it.
    """
    boxed = rf"\boxed{{{mathematics}}}"
    extraction = [LatexExtractionConfig(boxed_match_priority=0)]
    values = parse(boxed, extraction, extraction_mode="first_match", parsing_timeout=None)
    return Reading(values, mathematics.strip()) if values else None


def equal(target: list[Any], answer: list[Any]) -> bool:
    """Return whether math-verify finds values equal. Huge ones are compared as written."""
    if huge(target[0]) or huge(answer[0]):
        return bool(target[0] == answer[0])
    return bool(verify(target, answer, timeout_seconds=None))


def solutions(value: Any) -> Any:
    """Return the set that inequalities such as 1 < x <= 2 describe, or None for anything else.

    They are solved for a name already. A list of them, as in "x < 1 or x > 2", is their union.
    """
    if isinstance(value, sympy.FiniteSet | sympy.And) and value.args:
        sets = [solutions(part) for part in value.args]
        if None in sets or len(value.free_symbols) > 1:
            return None
        join = sympy.Union if isinstance(value, sympy.FiniteSet) else sympy.Intersection
        return reduce(join, sets)
    if not grader.is_relation(value) or grader.is_equation(value) or huge(value):
        return None
    name, bound = sorted((value.lhs, value.rhs), key=lambda side: not side.is_Symbol)
    return value.as_set() if name.is_Symbol and bound.is_number else None
