"""One notation for what LaTeX, unicode and plain text write in many ways: both graders read it.

Characters become LaTeX, the rules of `rules` are applied, and the result is written again without
needless blanks and braces.
"""

from __future__ import annotations

import re
import unicodedata

from mugrpo.rewards.rules import RULES

_NAMED = {
    "-": "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63",
    "'": "\u2018\u2019\u2032",
    "/": "\u00f7\u2044\u2215",
    ",": "\u3001",
    ".": "\u3002",
    "": '\u200b\u2060\ufeff"\u201c\u201d',
    r"\cdot ": "\u00d7\u00b7\u22c5\u2219",
    r"\pm ": "\u00b1",
    r"\infty ": "\u221e",
    r"\le ": "\u2264\u2a7d",
    r"\ge ": "\u2265\u2a7e",
    r"\ne ": "\u2260",
    r"\approx ": "\u2248",
    r"\equiv ": "\u2261",
    r"\cup ": "\u222a",
    r"\cap ": "\u2229",
    r"\in ": "\u2208",
    r"\emptyset ": "\u2205",
    r"\setminus ": "\u2216",
    r"\to ": "\u2192",
    r"\ldots ": "\u2026",
    r"\angle ": "\u2220",
    r"\degree ": "\u00b0\u00ba\u02da",
    r"\mathbb{R}": "\u211d",
    r"\mathbb{N}": "\u2115",
    r"\mathbb{Z}": "\u2124",
    r"\mathbb{Q}": "\u211a",
    r"\mathbb{C}": "\u2102",
}
_TABLE = {ord(c): latex for latex, characters in _NAMED.items() for c in characters}
_TABLE |= {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width ASCII
_TABLE |= {0xFF5B: r"\{", 0xFF5D: r"\}"}
for _code in range(0x391, 0x3CA):  # Greek letters
    _name = unicodedata.name(chr(_code), "").removeprefix("GREEK ").lower().split()
    if len(_name) == 3 and _name[1] == "letter":
        _TABLE[_code] = f"\\{_name[2].capitalize() if _name[0] == 'capital' else _name[2]} "
_RAISED = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b\u207f\u2071"
_LOWERED = "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089\u208a\u208b"
_SHIFTED = re.compile(f"[{_RAISED}]+|[{_LOWERED}]+")
_ROOT = re.compile("([\u221a\u221b\u221c])\\s*(?:\\(([^()]*)\\)|([0-9]+|[A-Za-z])|(?=\\{))")
_INDEX = {"\u221a": "", "\u221b": "[3]", "\u221c": "[4]"}
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_DIGIT = re.compile(r"[^\x00-\x7f]", re.ASCII)


def ascii_latex(text: str) -> str:
    """Return `text` with unicode fractions, roots, superscripts, digits and signs as LaTeX."""
    if text.isascii():
        return text
    text = _ROOT.sub(_root, text)
    text = _SHIFTED.sub(_shifted, text)
    text = _VULGAR.sub(_vulgar, text).translate(_TABLE)
    return _DIGIT.sub(lambda m: str(unicodedata.digit(m[0], m[0])), text)


def _root(sign: re.Match[str]) -> str:
    return rf"\sqrt{_INDEX[sign[1]]}" + (f"{{{sign[2] or sign[3]}}}" if sign[2] or sign[3] else "")


def _shifted(characters: re.Match[str]) -> str:
    mark = "^" if characters[0][0] in _RAISED else "_"
    plain = unicodedata.normalize("NFKC", characters[0]).translate(_TABLE)
    return mark + (plain if len(plain) == 1 else f"{{{plain}}}")


def _vulgar(character: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", character[0]).partition("\u2044")
    return rf"\frac{{{above}}}{{{below}}}"


def normal(answer: str) -> str:
    r"""Return an answer in the one notation, without needless blanks and braces.

    Words stand in \text{...}, in lower case. A currency sign becomes a word after the amount.
    """
    text = ascii_latex(answer).strip()
    for pattern, replacement, _, _ in RULES:
        text = pattern.sub(replacement, text)
    text = text.replace("$", "")
    try:
        text = _Writer(_TOKEN.findall(text)).sequence(0)
    except _TooDeepError:
        text = "".join(text.split())
    return _trimmed(text)


def _trimmed(text: str) -> str:
    """Return `text` without punctuation and line breaks around it."""
    while text != (shorter := text.removesuffix("\\\\").strip(",;: ").rstrip(".")):
        text = shorter
    return text


_TOKEN = re.compile(
    r"\\text\{[^{}]*\}|\\(?:begin|end)\{[a-z]*\}|\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|\s+|.",
    re.DOTALL,
)
_ARGUMENTS = {rf"\{name}": 1 for name in ("sqrt", "mathbb", "pmod", "cancel")}
_ARGUMENTS |= {rf"\over{name}": 1 for name in ("line", "rightarrow", "brace")}
_ARGUMENTS |= {rf"\{name}": 1 for name in ("vec", "hat", "bar", "dot", "tilde", "widehat")}
_ARGUMENTS |= {r"\frac": 2, r"\binom": 2, "^": 1, "_": 1}
_DEEPEST = 60  # braces in braces: no answer of a person has more, and the stack ends


class _TooDeepError(Exception):
    """An answer has more braces in braces than `_DEEPEST`."""


class _Writer:
    """Writes the tokens of an answer again: each argument in braces, and no other braces."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens[::-1]  # the next one is the last

    def sequence(self, depth: int) -> str:
        """Return what is written up to the closing brace, or to the end at depth 0."""
        if depth > _DEEPEST:
            raise _TooDeepError
        parts: list[str] = []
        apart = False
        while self._tokens:
            token = self._tokens.pop()
            if token.isspace():
                apart = True
                continue
            if token == "}" and depth:
                break
            if token == "{":
                part = self.sequence(depth + 1)
            else:
                part = self._with_arguments(token, parts[-1] if parts else "", depth)
            if parts and part and _touch(parts[-1], part, apart):
                parts.append(" ")
            parts.append(part)
            apart = False
        return "".join(parts)

    def _with_arguments(self, token: str, before: str, depth: int) -> str:
        if token.startswith(r"\text{"):
            return rf"\text{{{' '.join(token[6:-1].lower().split())}}}"
        if depth > _DEEPEST:
            raise _TooDeepError
        written = token
        if token == r"\sqrt" and self._next() == "[":
            while self._tokens and not written.endswith("]"):
                written += self._tokens.pop()
        power = token in ("^", "_") and before != r"\log"
        for _ in range(_ARGUMENTS.get(token, 0)):
            written += self._argument(power, depth)
        return written

    def _argument(self, power: bool, depth: int) -> str:
        """Return an argument in braces. Without braces it is one digit, or a power's number."""
        if not self._next():
            return "{}"
        token = self._tokens.pop()
        if token == "{":
            return f"{{{self.sequence(depth + 1)}}}"
        if token[0].isdigit() and len(token) > 1 and not power:
            self._tokens.append(token[1:])
            token = token[0]
        return f"{{{self._with_arguments(token, '', depth + 1)}}}"

    def _next(self) -> str:
        while self._tokens and self._tokens[-1].isspace():
            self._tokens.pop()
        return self._tokens[-1] if self._tokens else ""


def _touch(left: str, right: str, apart: bool) -> bool:
    """Return whether two pieces would be read as one without a blank between them."""
    if left[-1:].isdigit() and right[:1].isdigit():
        return apart
    return left.startswith("\\") and left[1:].isalpha() and right[:1].isalpha()
