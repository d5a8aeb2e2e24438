"""The notation of answers: characters that LaTeX writes otherwise, units, words, and boxes."""

from __future__ import annotations

import re
import unicodedata

GAP = r"(?:\s|\\[,;:! ]|\\q?quad(?![A-Za-z])|~)"

_CHARACTERS = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014", "-"),
    "\u2212": "-",
    "\u00d7": r"\times ",
    "\u00b7": r"\cdot ",
    "\u22c5": r"\cdot ",
    "\u00f7": "/",
    "\u2044": "/",
    "\u00b1": r"\pm ",
    "\u221e": r"\infty ",
    "\u03c0": r"\pi ",
    "\u03b8": r"\theta ",
    "\u2264": r"\le ",
    "\u2265": r"\ge ",
    "\u2260": r"\ne ",
    "\u2248": r"\approx ",
    "\u222a": r"\cup ",
    "\u2229": r"\cap ",
    "\u2208": r"\in ",
    "\u2205": r"\emptyset ",
    "\u00b0": r"^\circ ",
}
_TABLE = str.maketrans(_CHARACTERS)
_ROOT = re.compile(
    r"([\u221a\u221b\u221c])\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+(?:\.\d+)?|[A-Za-z]))"
)
_INDEX = {"\u221a": "", "\u221b": "[3]", "\u221c": "[4]"}
_RAISED = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b\u207f\u2071"
_LOWERED = "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089\u208a\u208b"
_SHIFTED = re.compile(f"[{_RAISED}]+|[{_LOWERED}]+")
_FRACTION = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_SPECIAL = re.compile(
    f"[\u221a-\u221c{_RAISED}{_LOWERED}\u00bc-\u00be\u2150-\u215e{''.join(_CHARACTERS)}]"
)

# A formula in a text without LaTeX: what stands between blanks or around operators, but no words.
_PIECE = r"(?![A-Za-z]{2,}\b(?!\())[^\s$+*/=<>\u2264\u2265\u2212\u00d7\u00b7\u00b1-]+"
_SIGN = r"[-+*/=<>\u2264\u2265\u2212\u00d7\u00b7\u00b1]"
_DASH = re.compile(r"((?:^|[^\d)\s])\s*)[\u2010-\u2014](?=\.?\d)")  # not that of a range, as in 3-5
_FORMULA = re.compile(rf"(?<!\S){_SIGN}?{_PIECE}(?:\s*{_SIGN}+\s*{_PIECE})*")
_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:/\d+)?"
_PLAIN_INTERVAL = re.compile(rf"[(\[]\s*{_NUMBER}\s*,\s*{_NUMBER}\s*[)\]](?!\w)")
_REVERSED = re.compile(r"\s*([\[\]])([^\[\]]*,[^\[\]]*)([\[\]])\s*")

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_JOINT = re.compile(rf"(?:{GAP}|[,;$&]|\\\\|\\text\{{|\}}|\band\b|\bor\b)*")


def latex(text: str) -> str:
    """Return `text` with unicode fractions, roots, superscripts, dashes and signs as LaTeX.

    In a text without LaTeX, formulas with these characters, and intervals, get dollar signs.
    """
    if not any(mark in text for mark in ("$", r"\(", r"\[", r"\boxed", r"\fbox")):
        text = _PLAIN_INTERVAL.sub(lambda match: f"${match[0]}$", _DASH.sub(r"\1-", text))
        text = re.sub("[\u2010-\u2014]", " ", text)
        text = "$".join(
            _FORMULA.sub(_marked, part) if place % 2 == 0 else part
            for place, part in enumerate(text.split("$"))
        )
    text = _ROOT.sub(lambda m: rf"\sqrt{_INDEX[m[1]]}{{{m[2] or m[3] or m[4]}}}", text)
    text = _SHIFTED.sub(_shifted, text)
    text = _FRACTION.sub(_fraction, text)
    return text.translate(_TABLE)


def _marked(formula: re.Match[str]) -> str:
    body = formula[0].rstrip(".,;:!?")
    if not _SPECIAL.search(body) or not re.search(r"[\d\u221a\u00bc-\u00be\u2150-\u215e]", body):
        return formula[0]
    return f"${body}${formula[0][len(body) :]}"


def _shifted(characters: re.Match[str]) -> str:
    mark = "^" if characters[0][0] in _RAISED else "_"
    return f"{mark}{{{unicodedata.normalize('NFKC', characters[0]).translate(_TABLE)}}}"


def _fraction(character: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", character[0]).partition("\u2044")
    return rf"\frac{{{above}}}{{{below}}}"


def round_brackets(mathematics: str) -> str:
    """Return the interval ]1,2[ as (1,2), and anything else unchanged."""
    match = _REVERSED.fullmatch(mathematics)
    if match is None or match[1] + match[3] == "[]":
        return mathematics
    return f"{'[' if match[1] == '[' else '('}{match[2]}{']' if match[3] == ']' else ')'}"


def boxes(text: str) -> list[list[str]]:
    r"""Return the contents of all closed \boxed{...}, outermost ones, grouped.

    Boxes with nothing but "and", "or" or punctuation between them form one group.
    """
    groups: list[list[str]] = []
    end = 0
    for match in _BOX.finditer(text):
        close = _closing(text, match.end()) if match.start() >= end else None
        if close is None:
            continue
        if not groups or not _JOINT.fullmatch(text, end, match.start()):
            groups.append([])
        groups[-1].append(_BOX.sub("{", text[match.end() : close]))
        end = close + 1
    return groups


def _closing(text: str, start: int) -> int | None:
    """Return the place of the brace that closes the one before `start`, or None."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return None


def elements(mathematics: str) -> list[str]:
    """Split a list at its commas outside of brackets: "1", "(2,3)" of "1, (2,3)"."""
    pieces, depth = [""], 0
    for character in mathematics:
        depth += (character in "{([") - (character in "})]")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces
