r"""What stands beside a value: units, number words and other words.

Both verifiers (`math`, `numeric`) compare them here.

- A unit has one short name; if both sides have a unit, it must be the same. Units are not
  converted.
- A number word multiplies: 5 million is 5000000.
- A word that tells two answers apart (`TELLING`: p.m., north, left) must be on both sides, or on
  the answer's alone. Of other words (12 apples), one must be the same if both sides have some.
- A word that says something else about the number (`OTHERWISE`: not, root) is never dropped.
"""

import re

from mugrpo.rewards.math.notation import ascii_latex

_UNITS = {
    name: unit
    for unit, names in {
        "mm": "mm millimeter millimetre",
        "cm": "cm centimeter centimetre",
        "m": "m meter metre",
        "km": "km kilometer kilometre",
        "in": "in inch inche",
        "ft": "ft foot feet",
        "yd": "yd yard",
        "mi": "mi mile",
        "mg": "mg milligram",
        "g": "g gram",
        "kg": "kg kilogram kilo",
        "oz": "oz ounce",
        "pound": "lb pound",
        "ml": "ml milliliter millilitre",
        "l": "l liter litre",
        "s": "s second sec",
        "min": "min minute",
        "h": "h hour hr",
        "day": "day",
        "week": "week",
        "month": "month",
        "year": "year yr",
        "degree": "degree deg",
        "radian": "radian rad",
        "dollar": "dollar usd",
        "cent": "cent",
        "euro": "euro eur",
        "yen": "yen jpy",
        "rupee": "rupee rs inr",
        "n": "n newton",
        "j": "j joule",
        "w": "w watt",
        "v": "v volt",
        "hz": "hz hertz",
        "pa": "pa pascal",
        "ohm": "ohm",
        "ampere": "ampere amp",
        "kelvin": "kelvin",
        "mol": "mol mole",
        "%": "% percent pct percentage",
    }.items()
    for name in names.split()
}
_UNITS |= {f"degree{c}": f"degree{c}" for c in "cf"}
_TEMPERATURE = re.compile(r"degrees? (c|f)(?:elsius|ahrenheit)?$|^(c|f)(?:elsius|ahrenheit)$")
_SQUARE = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_ONE = r"(?:(square|sq|cubic|cu)\.? )?([A-Za-z%]+)\.?(?: ?\^\{?(-?[0-9])\}?)?"
_PARTS = re.compile(rf"{_ONE}(?: ?(?:/|per) ?{_ONE})?")

MULTIPLIERS = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TELLING = _words(
    "am pm bc ad bce ce north south east west northeast northwest southeast southwest left right "
    "up down above below inside outside before after ahead behind early late earlier later "
    "increase decrease rise fall profit loss gain clockwise counterclockwise "
    "anticlockwise positive negative heads tails even odd"
)
OTHERWISE = _words(
    "not no never neither nor cannot isnt arent wasnt cant is are was were too than or to "
    "minus plus times over about approximately roughly nearly almost between far anything but "
    "wrong incorrect false zero point least most root power square squared cubed factorial "
    "twice double triple pair couple half halve third quarter fourth fifth sixth seventh "
    "eighth ninth tenth hundredth thousandth millionth crore lakh bn mil gross score "
    "if unless except remainder r mod base "
    "january february march april may june july august september october november december"
)


def unit_of(words: str) -> str:
    """Return the short name of the unit that `words` spell, or "" if it is none that is known."""
    words = re.sub(r"\bmph\b", "mi/h", words.rstrip("."))
    words = re.sub(r"\bkm ?ph\b|\bkmh\b", "km/h", words)
    if temperature := _TEMPERATURE.search(words):
        return f"degree{temperature[1] or temperature[2]}"
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
    unit = _UNITS.get(word) or _UNITS.get(word.removesuffix("s"), "")
    return unit and unit + (exponent or _SQUARE.get(power or "", ""))


def after_number(tail: str) -> str:
    """Return the unit or number words with which the text after a number begins, or ""."""
    tail = tail[:60].lstrip("$\\) ")
    words = re.split(r"(?<=[\w\u00b2\u00b3%])[,;:!?]|\.(?:\s|$)", tail)[0].split()[:4]
    for length in range(len(words), 0, -1):
        spoken = ascii_latex(" ".join(words[:length])).lower()
        if unit_of(spoken) or spoken.rstrip("s") in MULTIPLIERS:
            return spoken
    return ""


def words_of(text: str) -> list[str]:
    """Return the words and digits of a text in the singular, without dots: pm of p.m."""
    found = re.findall(r"[^\W_]+", text.replace(".", "").replace("'", ""))
    return [_singular(word) for word in found if word not in ("the", "a", "an", "of", "in", "and")]


def _singular(word: str) -> str:
    if word in TELLING or word in OTHERWISE or len(word) < 4:
        return word
    return re.sub(r"(?<=[cs]h|.x|ss)es$|(?<!s)s$", "", word)


def same_words(target: frozenset[str], answer: frozenset[str]) -> bool:
    """Return whether the words beside two values let these be equal."""
    if target == answer:
        return True
    if not target:
        return not answer & OTHERWISE
    if not answer:
        return not target & (TELLING | OTHERWISE)
    return bool(target & answer) and not (target ^ answer) & (TELLING | OTHERWISE)


def same_unit(target: str, answer: str) -> bool:
    """Return whether two units are the same, or one side has none. A degree may have no scale."""
    if not target or not answer or target == answer:
        return True
    return {target, answer} in ({"degree", "degreec"}, {"degree", "degreef"})
