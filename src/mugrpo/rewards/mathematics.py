"""Equality of mathematical answers by math-verify, and the matches that strict mode rejects.

Strict mode reads the last box as a whole. Without a box, it reads the text as math-verify does. It
rejects a match of math-verify if

- a side of a chain of equalities has another value: x=7=12 for 12, or 2x=12 (x is 6);
- a set stands for a tuple or an interval, or vice versa: {1,2} for (1,2);
- two numbers agree only because both are small: 0.0000002 for 0.0000001;
- two words have the same letters: seat for east;
- numbers stand side by side (1 2, read as 1 + 2), or have another base (12_9 for 12_8);
- two equations match only because neither has a solution.

Numbers too large to compute (`magnitude`) equal only those written the same way. A verdict depends
on nothing but text and reference: sympy's random numbers begin anew at each call.
"""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Status
from mugrpo.rewards.verdict import Verdict

try:
    import sympy
    from math_verify import LatexExtractionConfig, grader, parse, parser, verify
    from sympy import Dummy, solve
    from sympy.core.function import AppliedUndef
    from sympy.core.random import seed

    from mugrpo.rewards.magnitude import huge
except ModuleNotFoundError as error:
    raise UsageError(
        f"the reward math needs math-verify ({error}): pip install 'mugrpo[math]'"
    ) from None

LONGEST_TEXT = 4000  # characters at the end of a response that are read

_FAR = 1e-3  # relative difference above which two numbers differ, however small both are
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_GAP = r"(?:\s|\\[,;:! ]|\\q?quad|~)"
_SPACED_THOUSANDS = re.compile(rf"(?<![\d.])(\d{{1,3}})((?:{_GAP}\d{{3}})+)(?!\d)")
_SIDE_BY_SIDE = re.compile(rf"\d{_GAP}+\d")
_BASE = re.compile(r"\d_\{?(\d+)")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d+)(?!\w)")
_MINUS_APART = re.compile(r"(\bis|[:=])\s*-\s+(?=[\d.])")
_LAST_DOT = re.compile(r"(?<!\.)\.\s*$")
_WORD = re.compile(r"(?:\\text\{)?\s*([A-Za-z]{4,})\s*\}?")
_NO_EQUALITY = ("\\", "<", ">", "!", ":")  # before "=" these form another sign


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
    """An answer read in a text: math-verify's values, and the piece of text they come from."""

    values: list[Any]
    text: str

    @property
    def value(self) -> Any:
        return self.values[0]


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
        target = self._reference(reference)
        answer = self._read(text[-LONGEST_TEXT:])
        if answer is None:
            return Verdict(Status.NO_ANSWER)
        right = _equal(target.values, answer.values)
        if right and self._strict and answer.text != target.text:
            right = not _loose(target, answer)
        return Verdict(Status.RIGHT if right else Status.WRONG, answer.text)

    def _read(self, text: str) -> Reading | None:
        return _read_strictly(text) if self._strict else _read_text(text)

    def _read_reference(self, reference: str) -> Reading:
        marked = any(mark in reference for mark in ("$", r"\boxed", r"\(", r"\["))
        reading = self._read(reference if marked else rf"\boxed{{{reference}}}")
        reading = reading or _read_text(reference)
        if reading is None:
            raise ValueError(f"math-verify cannot read the reference answer {reference!r}")
        return reading


def _read_text(text: str) -> Reading | None:
    """Return what math-verify finds in a text, or None if it finds nothing."""
    values = parse(text, parsing_timeout=None)
    return Reading(values, str(values[-1]).strip()) if values else None


def _read_whole(mathematics: str) -> Reading | None:
    """Return the reading of a piece of LaTeX as a whole.

    Return None if it makes no sense as a whole, rather than pick a number out of it.
    """
    boxed = rf"\boxed{{{mathematics}}}"
    extraction = [LatexExtractionConfig(boxed_match_priority=0)]
    values = parse(boxed, extraction, extraction_mode="first_match", parsing_timeout=None)
    return Reading(values, mathematics.strip()) if values else None


def _read_strictly(text: str) -> Reading | None:
    """Return the reading of the last box, or without a box, what math-verify finds in the text."""
    text = _MINUS_APART.sub(r"\1 -", text.replace("\N{MINUS SIGN}", "-"))
    dollar = "" if "$" in text or r"\(" in text or r"\[" in text else "$"
    text = _SCIENTIFIC.sub(rf"{dollar}\1 \\cdot 10^{{\2}}{dollar}", text)
    content = last_box(text)
    if content is None:
        return _read_text(text)
    content = _SPACED_THOUSANDS.sub(_joined, re.sub(r"\\?\$", "", content))
    content = _LAST_DOT.sub("", content)
    return _read_whole(content) if content.strip() else None


def last_box(text: str) -> str | None:
    r"""Return what the last closed \boxed{...} holds, or None: "12" of "\boxed{1}\boxed{12}"."""
    for start in reversed([match.end() for match in _BOX.finditer(text)]):
        depth = 1
        for end in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[start:end]
    return None


def _joined(thousands: re.Match[str]) -> str:
    return thousands[1] + "".join(re.findall(r"\d{3}", thousands[2]))


def _equal(target: list[Any], answer: list[Any]) -> bool:
    """Return whether math-verify finds values equal. Huge ones are compared as written."""
    if huge(target[0]) or huge(answer[0]):
        return bool(target[0] == answer[0])
    return bool(verify(target, answer, timeout_seconds=None))


def _loose(target: Reading, reading: Reading) -> bool:
    """Return whether strict mode rejects this match of math-verify."""
    if _SIDE_BY_SIDE.search(reading.text) and not _SIDE_BY_SIDE.search(target.text):
        return True
    if not _bases(reading) <= _bases(target) | {"10"} or _other_word(target, reading):
        return True
    gold, answer = target.value, reading.value
    if isinstance(gold, str) or isinstance(answer, str) or huge(answer):
        return False
    if not _consistent(gold, answer, _sides(reading.text)):
        return True
    zeros = [_zero(gold), _zero(answer)]
    if None not in zeros:
        same = _equal(zeros[:1], zeros[1:]) or _equal(zeros[:1], [-zeros[1]])
        return not same and not solve(gold, gold.free_symbols)
    if grader.is_relation(gold) and not grader.is_equation(gold):
        return False
    gold, answer = _bare(gold), _bare(answer)
    return _shape(gold) != _shape(answer) or _far(gold, answer)


def _bases(reading: Reading) -> set[str]:
    return set(_BASE.findall(reading.text))


def _other_word(target: Reading, answer: Reading) -> bool:
    """Return whether both readings are words, but different ones.

    Words have at least four letters, as fewer may be a product. Case does not matter.
    """
    words = [_WORD.fullmatch(reading.text) for reading in (target, answer)]
    spellings = {word[1].casefold() for word in words if word is not None}
    return None not in words and len(spellings) == 2


def _sides(text: str) -> list[str]:
    """Split a chain of equalities into its sides: "x", "f(a=1)", "12" of "x=f(a=1)=12"."""
    sides, depth = [""], 0
    for before, character in zip(" " + text, text, strict=False):
        depth += (character in "{([") - (character in "})]")
        if character == "=" and depth == 0 and before not in _NO_EQUALITY:
            sides.append("")
        else:
            sides[-1] += character
    return sides


def _consistent(gold: Any, answer: Any, sides: list[str]) -> bool:
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
    if len(sides) == 1:
        return True
    first, *middle, last = (_read_whole(side) for side in sides)
    if first is None or last is None or None in middle:
        return False
    if not all(_equal(last.values, side.values) for side in middle if side is not None):
        return False
    return grader.is_equation(gold) or _name(first) or _equal(last.values, first.values)


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
    for value in (gold, answer):
        if not getattr(value, "is_number", False) or value.has(sympy.UnevaluatedExpr):
            return False
    try:
        difference, size = (float(sympy.N(abs(v))) for v in (answer - gold, gold))
    except OverflowError:
        return False
    return difference > _FAR * size
