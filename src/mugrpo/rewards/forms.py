"""The form in which `plain` compares answers: exact numbers, lists, brackets, or text.

Two answers are equal if their forms are. The text is normalized much as by the authors of the MATH
data set (Hendrycks et al., arXiv 2103.03874, `is_equiv`): commands that change only the looks,
blanks, units, degree, dollar and percent signs are dropped; \\frac12, \\sqrt2, .5 and x=5 become
\\frac{1}{2}, \\sqrt{2}, 0.5 and 5. Beyond that:

- numbers are equal as fractions: 0.5, 1/2, \\frac{2}{4}; 1\\frac{1}{2} and 1.5; 1,000 and 10^3;
- tuples and intervals with the same brackets are equal if their elements are, in order;
- sets, and lists without brackets, are equal if their elements are, in any order, each as often;
  a \\pm b is the list of a + b and a - b, and a union of intervals is compared as a set is;
- two units, or two names of the unknown, must be the same if both sides have one.

Nothing is evaluated: 2+2 is not 4, and (x+1)^2 is not x^2+2x+1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from fractions import Fraction

_DEEPEST = 4  # brackets in brackets; what is deeper is compared as text
_LARGEST_EXPONENT = 400  # of 10, in scientific notation

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}", "-"),
        **dict.fromkeys("\"“”\u200b\ufeff", None),
        **dict.fromkeys("\u00a0\u2009\u202f\t\r\n", " "),
        "°": r"^\circ ", "π": r"\pi ", "√": r"\sqrt", "∞": r"\infty ",
        "\N{MULTIPLICATION SIGN}": r"\times ", "·": r"\cdot ", "±": r"\pm ",
        "≤": r"\le ", "≥": r"\ge ", "∈": r"\in ",
        "²": "^2", "³": "^3", "½": r"\frac12", "¼": r"\frac14", "¾": r"\frac34",
    }
)  # fmt: skip
_UNION = "\N{UNION}"
_LETTERS_END = r"(?![A-Za-z])"
# In order. A text in LaTeX becomes a text in quotation marks, a row's end \n.
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\\(?:\[[^\]]*\])?", "\n"),
        (r"(?:\{,\}|,\\!\s*)(?=[0-9]{3})", ""),
        (r"\\!\s*", ""),
        (rf"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle){_LETTERS_END}", ""),
        (rf"\\q?quad{_LETTERS_END}|\\[,;: ]|~", " "),
        (r"\\[dtc]frac", r"\\frac"),
        (rf"\\(le|ge)(?:q|qslant){_LETTERS_END}", r"\\\1"),
        (rf"\\(?:emptyset|varnothing){_LETTERS_END}", r"\\{\\}"),
        (rf"\\cup{_LETTERS_END}", _UNION),
        (rf"\^\s*(?:\{{\s*\\circ\s*\}}|\\circ{_LETTERS_END})", '"degree"'),
        (r"\\?%", '"percent"'),
        (
            r"\\(?:text(?:rm|bf|it|normal)?|mbox|math(?:rm|bf|it)|operatorname)\s*\{([^{}]*)\}",
            r'"\1"',
        ),
        (r',?\s*"\s*(?:and|or)\s*,?\s*"\s*', ","),
        (r"(\\[A-Za-z]+)\s+(?![A-Za-z])", r"\1"),
        (r"([_^])\{(\w)\}", r"\1\2"),
        (r"\\sqrt([0-9A-Za-z])", r"\\sqrt{\1}"),
        (r"\\frac([0-9A-Za-z])\s*(?=[0-9A-Za-z{])", r"\\frac{\1}"),
        (r"\\frac(\{[^{}]*\})\s*([0-9A-Za-z])", r"\\frac\1{\2}"),
        (r"(?<![0-9])\.(?=[0-9])", "0."),
    )
]
_WORD_LIST = re.compile(r",?\s+(?:and|or)\s+")
_MONEY = re.compile(r"([-+]?)\s*\\?\$\s*(?=[0-9.])")

_NAME = re.compile(
    r"""(?:(?P<short>[A-Za-z]{1,2}(?:_\w|_\{[^{}]*\})?'*|\\(?:alpha|beta|gamma|theta|lambda|mu|phi))
    |[A-Za-z][A-Za-z ]*|"[^"]*"|[fghFGHPpQ]\((?:[a-z]|-?[0-9]+)\)
    |\([A-Za-z](?:\s*,\s*[A-Za-z])*\))\s*(?:=|\\in(?![A-Za-z]))(?P<rest>[^=]+)""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r'"[^"]*"')
_QUOTED_UNIT = re.compile(r'"[^"]*"(?:\^[0-9])?')
_WORDS_UNIT = re.compile(
    r"([^A-Za-z]*[0-9}])"
    r"(?:\s+([A-Za-z]{3,}(?: [A-Za-z]+)*)|\s*((?:[cmk]m|k?g|m[gl]|ft)(?:\^[0-9])?))"
)
_NO_UNITS = frozenset(
    {"hundred", "thousand", "million", "billion", "trillion", "dozen", "squared", "cubed", "and"}
    | {"or", "not", "minus", "plus", "times", "over", "mod", "sin", "cos", "tan", "log"}
)

_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:[ ][0-9]{3})+|[0-9]+)"
_DECIMAL = rf"{_WHOLE}(?:\.[0-9]*)?"
_NUMBER = re.compile(
    rf"""(?P<sign>[-+]?)\s*(?:
        (?:(?P<whole>{_WHOLE})\s*)??\\frac\{{(?P<minus>-?)\s*(?P<over>{_DECIMAL})\}}\{{(?P<under>{_DECIMAL})\}}
        |(?:(?P<whole2>{_WHOLE})\s+)??(?P<over2>{_DECIMAL})\s*/\s*(?P<under2>{_DECIMAL})
        |(?P<decimal>{_DECIMAL})(?:(?:[eE]|\s*(?:\\times|\\cdot|\*|x)\s*10\^)\{{?(?P<exponent>[-+]?[0-9]{{1,4}})\}}?)?
        |10\^\{{?(?P<power>-?[0-9]{{1,4}})\}}?
    )""",
    re.VERBOSE,
)
_SLASH = re.compile(r"(-?)([A-Za-z0-9\\{}]+)/([0-9]+|\\[a-z]+|[A-Za-z])")
_BLANKS = re.compile(r"(?<![0-9])\s+|\s+(?![0-9])")
_MATRIX = re.compile(r"\\begin\{[pb]matrix\}(.*)\\end\{[pb]matrix\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Form:
    """An answer's value, the name of the unknown before "=", and the unit after the value."""

    value: Hashable  # a Fraction, a text, or a tuple that begins with its kind
    name: str = ""
    unit: str = ""

    @property
    def empty(self) -> bool:
        return self.value == ""


def form(answer: str) -> Form:
    """Return the form of an answer as it is written."""
    text = answer.translate(_CHARACTERS).strip()
    if len(text) > 1 and text[0] == text[-1] == "$":
        text = text.strip("$")
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    if '"' not in text:
        text = _WORD_LIST.sub(",", text)
    text = text.strip("* \n").rstrip(".,;: ")
    name, text = _split_name(text)
    money = _MONEY.match(text)
    text = _MONEY.sub(r"\1", text, count=1) if money else text
    text, unit = _split_unit(text.replace("$", "").replace("\\$", ""))
    return Form(_value(text, 0), name, unit or ("dollar" if money else ""))


def same(reference: Form, answer: Form) -> bool:
    """Return whether `answer` is the reference. 0.5 is 50% only if the reference has the sign."""
    if reference.name and answer.name and reference.name != answer.name:
        return False
    if reference.unit and answer.unit and reference.unit != answer.unit:
        return False
    if reference.unit == "percent" and not answer.unit and isinstance(reference.value, Fraction):
        return answer.value in (reference.value, reference.value / 100)
    return reference.value == answer.value


def _split_name(text: str) -> tuple[str, str]:
    """Return the name before the only "=", and the rest. Words and f(x) have the name ""."""
    match = _NAME.fullmatch(text)
    return (match["short"] or "", match["rest"].strip()) if match else ("", text)


def _split_unit(text: str) -> tuple[str, str]:
    """Return the text without its unit, and the unit. Letters are units only after a number."""
    text = text.strip()
    if (start := _quoted_end(text)) > 0:
        core, unit = text[:start].rstrip(), text[start:]
    elif match := _WORDS_UNIT.fullmatch(text):
        core, unit = match[1], match[2] or match[3]
    else:
        return text, ""
    words = unit.replace('"', "").casefold().split()
    if not words or _NO_UNITS.intersection(words):
        return text, ""
    singular = "".join(words).replace("ches", "ch").rstrip(".").removesuffix("s")
    return core, "" if singular in ("unit", "squareunit", "cubicunit") else singular


def _quoted_end(text: str) -> int:
    """Return the start of the quoted text at the end of `text`, or -1."""
    end = text.rfind('"')
    start = text.rfind('"', 0, max(0, end))
    return start if start >= 0 and _QUOTED_UNIT.fullmatch(text, start) else -1


def _value(text: str, depth: int) -> Hashable:
    text = text.strip()
    if _QUOTED.fullmatch(text):
        text = text[1:-1].strip()
    if (number := _number(text)) is not None:
        return number
    if depth < _DEEPEST:
        if matrix := _MATRIX.fullmatch(text):
            rows = [row for row in matrix[1].split("\n") if row.strip()]
            return ("matrix", *(tuple(_elements(row.split("&"), depth)) for row in rows))
        if inside := _bracketed(text, depth):
            return inside
        for separator in (",", _UNION):
            if len(pieces := _pieces(text, separator)) > 1 or text.count(r"\pm") == 1:
                return separator, _multiset(pieces, depth)
    return _as_text(text)


def _bracketed(text: str, depth: int) -> Hashable:
    """Return the value of a set, a tuple, an interval or a text in parentheses, else None."""
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inner = text[2:-2]
        return ("set", _multiset(_pieces(inner, ","), depth)) if _balanced(inner) else None
    if text[:1] not in ("(", "[", "{") or text[-1:] not in (")", "]", "}"):
        return None
    inner = text[1:-1]
    if not _balanced(inner):
        return None
    pieces = _pieces(inner, ",")
    if len(pieces) == 1 and text[0] + text[-1] in ("()", "{}"):
        return _value(inner, depth + 1)
    return text[0] + text[-1], tuple(_elements(pieces, depth))


def _pieces(text: str, separator: str) -> list[str]:
    """Return the parts between separators outside brackets. [ and ) may be a pair."""
    depth, start, pieces = 0, 0, []
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return [text]
        if character == separator and depth == 0:
            pieces.append(text[start:position])
            start = position + 1
    return [*pieces, text[start:]] if depth == 0 and text.strip() else [text] if text else []


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _elements(pieces: Iterable[str], depth: int) -> list[Hashable]:
    """Return the values of a list's elements, without their names and units."""
    return [_value(_split_unit(_split_name(p.strip())[1])[0], depth + 1) for p in pieces]


def _multiset(pieces: Iterable[str], depth: int) -> Hashable:
    signed: list[str] = []
    for piece in pieces:
        if piece.count(r"\pm") == 1:
            before, after = piece.split(r"\pm")
            plus = "+" if before.split("=")[-1].strip() else ""
            signed += [before + plus + after, before + "-" + after]
        else:
            signed.append(piece)
    return frozenset(Counter(_elements(signed, depth)).items())


def _number(text: str) -> Fraction | None:
    """Return the number that `text` is, or None for anything else."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    over, under = match["over"] or match["over2"], match["under"] or match["under2"]
    exponent = int(match["exponent"] or match["power"] or 0)
    if abs(exponent) > _LARGEST_EXPONENT:
        return None
    if over is None:
        value = _exact(match["decimal"] or "1") * Fraction(10) ** exponent
    elif not (divisor := _exact(under)):
        return None
    else:
        whole = match["whole"] or match["whole2"]
        if whole and match["minus"]:
            return None
        value = _exact(over) / divisor + _exact(whole or "0")
    return -value if (match["sign"] == "-") != (match["minus"] == "-") else value


def _exact(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", "").rstrip("."))


def _as_text(text: str) -> str:
    text = _BLANKS.sub("", text.replace('"', ""))
    if match := _SLASH.fullmatch(text):
        text = rf"{match[1]}\frac{{{match[2]}}}{{{match[3]}}}"
    return text.casefold() if text.isalpha() and len(text) > 2 else text
