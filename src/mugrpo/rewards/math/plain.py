r"""Equality of final answers by text and exact numbers: a second judge beside math-verify's.

It reads an answer as `mathematics` does (`response`, `answers`), but compares values on its own,
so that an error in one of the two shows as a disagreement. It needs no package, evaluates no
expression (2+2 is not 4), and takes time linear in the text.

Without a box, a tag or "answer is", the answer is the last number in the text, if it stands alone:
not the 3 of 2\sqrt{3} or of x + 3. Two values are equal if their forms are:

- numbers are equal as fractions: 0.5, \frac{2}{4}; 1\frac{1}{2} and 1.5; 1000 and 10^{3};
- tuples and intervals with the same brackets are equal if their elements are, in order;
- sets, and lists without brackets, are equal if their elements are, in any order, each as often;
  a \pm b is the list of a + b and a - b, and a union of intervals is compared as a set is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable
from fractions import Fraction

from mugrpo.disk.records import Status
from mugrpo.rewards.math.answers import Answer, agree, judged, read_number, targets
from mugrpo.rewards.math.response import last_number
from mugrpo.rewards.verdict import Verdict, verdict

_DEEPEST = 4  # brackets in brackets; what is deeper is compared as text
_LARGEST_EXPONENT = 400  # of 10, in scientific notation
_UNION, _OR, _AND = "\N{UNION}", "\N{LOGICAL OR}", "\N{LOGICAL AND}"
_SIGNS = {"cup": _UNION, "vee": _OR, "wedge": _AND}

_DECIMAL = r"[0-9]+(?:\.[0-9]*)?"
_NUMBER = re.compile(
    rf"""(?P<sign>[-+]?)(?:
        (?P<whole>[0-9]+)??\\frac\{{(?P<minus>-?)(?P<over>{_DECIMAL})\}}\{{(?P<under>{_DECIMAL})\}}
        |(?P<over2>{_DECIMAL})/(?P<under2>{_DECIMAL})
        |(?P<decimal>{_DECIMAL})(?:(?:[eE]|(?:\\cdot|x)10\^)\{{?(?P<exponent>[-+]?[0-9]{{1,4}})\}}?)?
        |10\^\{{(?P<power>-?[0-9]{{1,4}})\}}
    )""",
    re.VERBOSE,
)
_SLASH = re.compile(r"(-?)([A-Za-z0-9\\{}]+)/([0-9]+|\\[a-z]+|[A-Za-z])")
_MATRIX = re.compile(r"\(?\\begin\{pmatrix\}(.*)\\end\{pmatrix\}\)?", re.DOTALL)
_NAMED = re.compile(r"([A-Za-z]|\\[a-z]+)(?:_\{[^{}]*\})?=")


def form(value: str, depth: int = 0) -> Hashable:
    """Return the form of a value in the one notation: a Fraction, a text, or a tuple of its kind
    and its elements."""
    if (number := exact_number(value)) is not None:
        return number
    if depth < _DEEPEST:
        if matrix := _MATRIX.fullmatch(value):
            rows = [row for row in matrix[1].split(r"\\") if row.strip()]
            return ("matrix", *(tuple(_elements(row.split("&"), depth)) for row in rows))
        if inside := _bracketed(value, depth):
            return inside
        text = re.sub(r"\\(cup|vee|wedge) ?", lambda match: _SIGNS[match[1]], value)
        for separator in (_OR, _AND, ",", _UNION):
            signs = separator == "," and text.count(r"\pm") == 1
            if len(pieces := _pieces(text, separator)) > 1 or signs:
                return separator, _multiset(pieces, depth)
    return _as_text(value)


def exact_number(text: str) -> Fraction | None:
    """Return the number that `text` is, or None for anything else."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    over, under = match["over"] or match["over2"], match["under"] or match["under2"]
    exponent = int(match["exponent"] or match["power"] or 0)
    if abs(exponent) > _LARGEST_EXPONENT:
        return None
    if over is None:
        value = Fraction((match["decimal"] or "1").rstrip(".")) * Fraction(10) ** exponent
    elif not (divisor := Fraction(under.rstrip("."))):
        return None
    else:
        if match["whole"] and match["minus"]:
            return None
        value = Fraction(over.rstrip(".")) / divisor + int(match["whole"] or 0)
    return -value if (match["sign"] == "-") != (match["minus"] == "-") else value


def _bracketed(text: str, depth: int) -> Hashable:
    """Return the form of a set, a tuple, an interval or a text in parentheses, else None."""
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inner = text[2:-2]
        return ("set", _multiset(_pieces(inner, ","), depth)) if _balanced(inner) else None
    if text[:1] not in ("(", "[") or text[-1:] not in (")", "]"):
        return None
    inner = text[1:-1]
    if not _balanced(inner):
        return None
    pieces = _pieces(inner, ",")
    if len(pieces) == 1 and text[0] + text[-1] == "()":
        return form(inner, depth + 1)
    return text[0] + text[-1], tuple(_elements(pieces, depth))


def _pieces(text: str, separator: str) -> list[str]:
    """Return the parts between separators outside brackets. [ and ) may be a pair."""
    depth, start, pieces = 0, 0, []
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return [text]
        if depth == 0 and (character == separator or (separator == "," and character == ";")):
            pieces.append(text[start:position])
            start = position + 1
    return [*pieces, text[start:]] if depth == 0 and text else [text] if text else []


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _elements(pieces: Iterable[str], depth: int) -> list[Hashable]:
    """Return the forms of a list's elements, without their names if there is only one name."""
    pieces = list(pieces)
    names = {match[1] for piece in pieces if (match := _NAMED.match(piece))}
    if len(names) > 1:
        return [form(piece, depth + 1) for piece in pieces]
    return [form(_NAMED.sub("", piece, count=1), depth + 1) for piece in pieces]


def _multiset(pieces: Iterable[str], depth: int) -> Hashable:
    signed: list[str] = []
    for piece in pieces:
        if piece.count(r"\pm") == 1:
            before, after = piece.split(r"\pm")
            plus = "+" if before.split("=")[-1] else ""
            signed += [before + plus + after.lstrip(), before + "-" + after.lstrip()]
        else:
            signed.append(piece)
    return frozenset(Counter(_elements(signed, depth)).items())


def _as_text(text: str) -> str:
    if match := _SLASH.fullmatch(text):
        return rf"{match[1]}\frac{{{match[2]}}}{{{match[3]}}}"
    return text


def plain(text: str, reference: str) -> Verdict:
    """Judge whether the answer in the last 10,000 characters of `text` is the reference.

    Raises ValueError if the reference is empty or longer than 1,000 characters.
    """
    expected = targets(reference)
    if found := judged(text, expected, same):
        return found
    if (number := last_number(text)) is None:
        return Verdict(Status.NO_ANSWER)
    answer, written = read_number(*number)
    return verdict(len(expected) == 1 and agree(expected[0], answer, same), written.strip())


def same(target: Answer, answer: Answer) -> bool:
    """Return whether two values are equal. Those of 50% and of 0.5 are."""
    ours, theirs = form(target.value), form(answer.value)
    if target.unit == answer.unit or "%" not in (target.unit, answer.unit):
        return ours == theirs
    if not isinstance(ours, Fraction) or not isinstance(theirs, Fraction):
        return False
    if target.unit == "%":
        return theirs in ({ours, ours / 100} if abs(theirs) >= 1 else {ours / 100})
    return ours in ({theirs, theirs / 100} if abs(theirs) >= 1 else {theirs / 100})
