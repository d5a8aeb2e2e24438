"""Units and words of answers: what stands beside a number, and what is no mathematics at all."""

from __future__ import annotations

import re

from mugrpo.rewards.notation import GAP

_LONG = {  # unit -> its names, in any case and number
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inche",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "mg": "milligram",
    "g": "gram",
    "kg": "kilogram kilo",
    "oz": "ounce",
    "lb": "pound",
    "ml": "milliliter millilitre",
    "l": "liter litre",
    "s": "second sec",
    "min": "minute",
    "h": "hour hr",
    "d": "day",
    "week": "week",
    "month": "month",
    "year": "year yr",
    "degree": "degree deg",
    "dollar": "dollar usd",
    "cent": "cent",
    "%": "percent pct percentage",
}
_UNITS = {name: unit for unit, names in _LONG.items() for name in names.split()}
_SHORT = (
    "mm",
    "cm",
    "m",
    "km",
    "in",
    "ft",
    "yd",
    "mi",
    "mg",
    "g",
    "kg",
    "oz",
    "lb",
    "s",
    "min",
    "h",
)
_UNITS |= {name: name for name in (*_SHORT, "ml", "mL", "l", "L")} | {"mL": "ml", "L": "l"}

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mbox|mathrm|operatorname)\s*\{([^{}]*)\}")
_TAIL = re.compile(
    rf"(?:{GAP}|\\(?:text|textbf|textit|textrm|mbox|mathrm)\s*\{{[^{{}}]*\}}|[A-Za-z/.]"
    rf"|\^\{{?(?:[23]\}}?|\\circ\}}?)|\\?%|\\degree)+$"
)
_SQUARE = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_ONE = r"(?:(square|sq|cubic|cu)\.? )?([A-Za-z%]+)\.?(?: ?\^\{?([23])\}?)?"
_PARTS = re.compile(rf"{_ONE}(?: ?(?:/|per) ?{_ONE})?")
_LONGEST = 80  # characters at the end in which a unit is looked for


def split_unit(mathematics: str) -> tuple[str, str]:
    r"""Return an answer without its unit, and the unit: "12", "cm2" of 12 \text{ cm}^2.

    The unit has its short name. It is "" if there is none, or none that is known. A letter directly
    after a digit is a factor, as in 2m, and not a unit.
    """
    text = mathematics.strip()
    if money := re.match(r"-?\s*\\?\$", text):
        return money[0].rstrip("\\$ ") + text[money.end() :].replace(r"\$", ""), "dollar"
    tail = _TAIL.search(text, max(0, len(text) - _LONGEST))
    number = text[: tail.start()] if tail else ""
    if tail is None or not re.search(r"[\d})$]$", number):
        return text, ""
    if re.fullmatch(r"[A-Za-z]", tail[0]) and number[-1].isdigit():
        return text, ""
    unit = _unit(tail[0])
    return (number, unit) if unit else (text, "")


def _unit(tail: str) -> str:
    """Return the short name of the unit that `tail` spells, or ""."""
    words = re.sub(GAP, " ", _TEXT.sub(r" \1 ", tail))
    words = re.sub(r"\^\{?\\circ\}?|\\degree", " degree ", words).replace("\\", "")
    words = re.sub(r"\bmph\b", "mi/h", " ".join(words.split()).rstrip("."))
    match = _PARTS.fullmatch(words)
    if match is None:
        return ""
    above, below = (_short(*match.groups()[place : place + 3]) for place in (0, 3))
    if not above or (match[5] and not below):
        return ""
    return f"{above}/{below}" if below else above


def _short(power: str | None, word: str | None, exponent: str | None) -> str:
    if not word:
        return ""
    unit = _UNITS.get(word) or _UNITS.get(word.lower().removesuffix("s"), "")
    unit = "%" if word == "%" else unit
    return unit and unit + (exponent or _SQUARE.get(power or "", ""))


def word(mathematics: str) -> str | None:
    r"""Return an answer that is a word, in lower case: "east" of \text{East}; otherwise None.

    At least three letters are a word, and so is whatever \text holds. Fewer may be a product.
    """
    bare = spelled(mathematics)
    marked = _TEXT.search(mathematics) is not None
    return bare if bare.isalpha() and bare.isascii() and (marked or len(bare) >= 3) else None


def spelled(mathematics: str) -> str:
    """Return the letters of an answer in lower case, without blanks, brackets and full stops."""
    return re.sub(rf"{GAP}|[().]", "", _TEXT.sub(r"\1", mathematics)).casefold()


def has_anagram(target: str, answer: str) -> bool:
    """Return whether a word of `target` has only its letters in `answer`: act for cat."""
    ours, theirs = (
        {word.casefold() for word in re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", text)}
        for text in (target, answer)
    )
    return bool({_letters(w) for w in ours - theirs} & {_letters(w) for w in theirs - ours})


def _letters(word: str) -> str:
    return "".join(sorted(word))
