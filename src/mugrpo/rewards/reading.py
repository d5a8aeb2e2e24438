"""Values that math-verify reads in a text."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, grader, parse, parser, verify

from mugrpo.rewards.magnitude import huge
from mugrpo.rewards.notation import ascii_latex


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
def read_whole(mathematics: str) -> Reading | None:
    """Return the reading of mathematics in the one notation as a whole.

    Return None if it makes no sense as a whole, rather than pick a number out of it.
    """
    if not mathematics.strip():
        return None
    if mathematics.count(r"\pm") == 1 and not re.search(r"[,;]|\\\{", mathematics):
        mathematics = ",".join(mathematics.replace(r"\pm", sign) for sign in "+-")
    boxed = rf"\boxed{{{round_brackets(mathematics)}}}"
    values = parse(boxed, [_CONFIG], extraction_mode="first_match", parsing_timeout=None)
    return Reading(values, mathematics) if values else None


def read_text(text: str) -> Reading | None:
    """Return what math-verify alone finds in a text, or None if it finds nothing."""
    values = parse(text, parsing_timeout=None)
    return Reading(values, str(values[-1]).strip()) if values else None


def read_prose(text: str) -> Reading | None:
    """Return what math-verify finds in a text whose formulas are marked for it."""
    reading = read_text(_formulas(text))
    percent = grader.get_pct_val(reading.value) if reading else None
    return (
        reading if percent is None or reading is None else replace(reading, values=[100 * percent])
    )


# A formula in a text without LaTeX: what stands between blanks or around operators, but no words.
_SIGNS = r"-+*/=<>\u2264\u2265\u2212\u00d7\u00b7\u00b1"
_PIECE = rf"(?![A-Za-z]{{2,}}\b(?!\())[^\s${_SIGNS}]+"
_FORMULA = re.compile(rf"(?<!\S)[{_SIGNS}]?{_PIECE}(?:\s*[{_SIGNS}]+\s*{_PIECE})*")
_DASH = re.compile(r"((?:^|[^\d)\s])\s*)[\u2010-\u2014](?=\.?\d)")  # not that of a range, as in 3-5
_MINUS_APART = re.compile(r"(\bis|[:=])\s*-\s+(?=[\d.])")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d+)(?!\w)")
_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:/\d+)?"
_PLAIN_INTERVAL = re.compile(rf"[(\[]\s*{_NUMBER}\s*,\s*{_NUMBER}\s*[)\]](?!\w)")
_CURRENCY = re.compile("[\u20ac\u00a3\u00a5\u20b9](?=[0-9])")
_UNIT_POWER = re.compile("(?<=[\\da-z])( ?)([kcm]?m|ft|in|yd)[\u00b2\u00b3]")


def _formulas(text: str) -> str:
    """Return a text as math-verify reads it best.

    In a text without LaTeX, formulas with characters of their own, and intervals, get dollar signs.
    """
    text = text.replace(r"\$", "")
    if any(mark in text for mark in ("$", r"\(", r"\[")):
        text = ascii_latex(text)
        return _SCIENTIFIC.sub(r"\1 \\cdot 10^{\2}", _MINUS_APART.sub(r"\1 -", text))
    text = _UNIT_POWER.sub(r" \2", _CURRENCY.sub("", text))
    text = _PLAIN_INTERVAL.sub(lambda match: f"${match[0]}$", _DASH.sub(r"\1-", text))
    text = re.sub("[\u2010-\u2014]", " ", text)
    text = "".join(
        part if part.startswith("$") else _FORMULA.sub(_marked, part)
        for part in re.split(r"(\$[^$]*\$)", text)
    )
    text = _SCIENTIFIC.sub(r"$\1 \\cdot 10^{\2}$", ascii_latex(text))
    return _MINUS_APART.sub(r"\1 -", text)


def _marked(formula: re.Match[str]) -> str:
    body = formula[0].rstrip(".,;:!?")
    if body.isascii() or not re.search(r"[\d\u221a\u00bc-\u00be\u2150-\u215e]", body):
        return formula[0]
    return f"${body}${formula[0][len(body) :]}"


_REVERSED = re.compile(r"([\[\]])([^\[\]]*,[^\[\]]*)([\[\]])")


def round_brackets(mathematics: str) -> str:
    """Return the interval ]1,2[ as (1,2), and anything else unchanged."""
    match = _REVERSED.fullmatch(mathematics)
    if match is None or match[1] + match[3] == "[]":
        return mathematics
    return f"{'[' if match[1] == '[' else '('}{match[2]}{']' if match[3] == ']' else ')'}"


def equal(target: list[Any], answer: list[Any]) -> bool:
    """Return whether math-verify finds values equal. Huge ones are compared as written."""
    if huge(target[0]) or huge(answer[0]):
        return bool(target[0] == answer[0])
    return bool(verify(target, answer, timeout_seconds=None))


def solutions(value: Any) -> Any:
    """Return the set of real numbers that a value describes, or None if it is none.

    Intervals, their unions and differences are sets; inequalities such as 1 < x <= 2 and |x| < 1
    are solved for a name already, and a list of them, as in "x < 1 or x > 2", is their union.
    """
    if isinstance(value, sympy.Interval | sympy.Union | sympy.Complement):
        if value.free_symbols:
            return None
        exact = {number: sympy.Rational(str(number)) for number in value.atoms(sympy.Float)}
        return value.xreplace(exact).doit()
    if isinstance(value, sympy.FiniteSet | sympy.And) and value.args:
        sets = [solutions(part) for part in value.args]
        if None in sets or len(value.free_symbols) > 1:
            return None
        join = sympy.Union if isinstance(value, sympy.FiniteSet) else sympy.Intersection
        return reduce(join, sets)
    if not grader.is_relation(value) or grader.is_equation(value) or huge(value):
        return None
    name, bound = sorted((value.lhs, value.rhs), key=lambda side: side.is_number)
    if not bound.is_number or not (name.is_Symbol or _distance(name)):
        return None
    real = sympy.Dummy(real=True)
    return value.subs(next(iter(name.free_symbols)), real).as_set()


def _distance(value: Any) -> bool:
    """Return whether a value is |x| or |x - 3|."""
    return (
        isinstance(value, sympy.Abs)
        and len(value.free_symbols) == 1
        and value.args[0].is_polynomial()
        and sympy.degree(value.args[0]) == 1
    )
