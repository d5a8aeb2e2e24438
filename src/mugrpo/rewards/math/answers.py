r"""An answer taken apart: its value, what the value is called, and what stands beside it.

Both verifiers (`math`, `numeric`) read answers with `read`, and `decided` tells what needs no
value: the same text, a choice, a word, units and words that differ. They compare values on their
own.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from mugrpo.rewards.math.names import elements, named_otherwise, without_name
from mugrpo.rewards.math.notation import normal
from mugrpo.rewards.math.response import LONGEST_ANSWER, reference_part
from mugrpo.rewards.math.units import (
    MULTIPLIERS,
    same_unit,
    same_words,
    unit_of,
    words_of,
)

Same = Callable[["MathAnswer", "MathAnswer"], bool]  # whether (reference, answer) have equal values

_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_TAIL = re.compile(
    r"(?:\\text\{[^{}]*\}|\^\{\\circ\}|\\%)(?:\\text\{[^{}]*\}|\^\{(?:-?[0-9]|\\circ)\}|\\%|/|\\cdot)*$"
)
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_DECIMAL_COMMA = re.compile(
    r"([^0-9,(\[{]*(?:0|[0-9]{4,}|[0-9]+(?!,[0-9]{3}(?![0-9])))),([0-9]+(?![0-9,])[^0-9]*)"
)
_BUILT = re.compile(
    r"\\\{([a-z])(?:\\in\\mathbb\{R\})?[|:]([^|:,=]*(?:<|>|\\(?:[lg]e|ne)(?![a-z]))[^|:,=]*)\\\}"
)
_DOMAIN = re.compile(
    r"(?:,|\()([a-z]\\in(?:\\mathbb\{[NZQR]\}|\\text\{[^{}]*\})(?:\^\{[+*]\})?)\)?$"
)
_NOTE = re.compile(
    r",?(?:\\forall.*|\(\\text\{[^{}]*\}.*\)|\(?\\text\{[(, ]*(?:for|where|with|since|because|as|"
    r"given that|only|exactly|is the only|and its)\b.*|\\text\{\([^{}]*\)\})$"
)
_MODULUS = re.compile(r"\\pmod\{([^{}]*)\}$")
_CHOICE = re.compile(
    r"(?:option|choice|answer)?:?\s*(?:\(([a-j])\)|\[([a-j])\]|([a-j])(?:[).:]|$))[.:]?(.*)",
    re.DOTALL,
)
_PRIMED = re.compile(r"\w'+")
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_DENIALS = {"not", "wrong", "incorrect", "false", "or", "and", "isnt"}

_LARGEST_EXPONENT = 400  # of 10, in scientific notation
_DIGITS = r"[0-9]+(?:\.[0-9]*)?"
_NUMBER = re.compile(
    rf"""(?P<sign>[-+]?)(?:
        (?P<whole>[0-9]+)??\\frac\{{(?P<minus>-?)(?P<over>{_DIGITS})\}}\{{(?P<under>{_DIGITS})\}}
        |(?P<over2>{_DIGITS})/(?P<under2>{_DIGITS})
        |(?P<decimal>{_DIGITS})(?:(?:[eE]|(?:\\cdot|x)10\^)\{{?(?P<exponent>[-+]?[0-9]{{1,4}})\}}?)?
        |10\^\{{(?P<power>-?[0-9]{{1,4}})\}}
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class MathAnswer:
    """An answer as both verifiers (`math`, `numeric`) read it."""

    text: str  # all of it in the one notation
    core: str  # the mathematics without label, unit and words
    name: str = ""  # what stands before "="; the core keeps it unless it is a label
    value: str = ""  # the core without a name
    unit: str = ""
    words: frozenset[str] = frozenset()
    domain: str = ""  # k\in\mathbb{Z}
    mixed: str = ""  # words among the mathematics, which only the same words equal
    choice: tuple[str, str] = ("", "")  # the letter of a multiple choice, and what follows it
    word: str = ""  # the letters of an answer that is a word


@lru_cache(maxsize=1024)  # a group's responses have the same reference, and many the same answer
def read(answer: str) -> MathAnswer:
    """Return an answer taken apart."""
    text = normal(answer)
    core, domain = _without_notes(text)
    if built := _BUILT.fullmatch(core):
        core = built[2]
    name, core, value = without_name(core)
    parts = [_beside(part) for part in elements(core)]
    cores = [part for part, _, _ in parts]
    units = {unit for _, unit, _ in parts if unit}
    words = {beside for _, _, beside in parts if beside}
    found = MathAnswer(
        text, core, name, value, domain=domain, choice=_choice(text), word=_word(text)
    )
    if len(units) > 1 or len(words) > 1 or any(map(_TEXT.search, cores)):
        return replace(found, mixed=_mixed(core))
    core = ",".join(cores)
    value = ",".join(_beside(part)[0] for part in elements(value))
    unit = units.pop() if units else ""
    return replace(
        found, core=core, value=value, unit=unit, words=words.pop() if words else frozenset()
    )


def decided(target: MathAnswer, answer: MathAnswer) -> bool | None:
    """Return whether `answer` is the reference `target`, or None if their values decide that."""
    if len({one.text.replace(r"\wedge ", ",") for one in (target, answer)}) == 1:
        return True  # in a list of inequalities, all of them hold
    if target.choice[0] and target.choice[0] == answer.choice[0]:
        return not (target.choice[1] and answer.choice[1])
    if target.word:
        return target.word == spelled(answer.text)
    if target.mixed or answer.mixed:
        return target.mixed == answer.mixed
    if not same_unit(target.unit, answer.unit) or not same_words(target.words, answer.words):
        return False
    if target.domain and answer.domain and target.domain != answer.domain:
        return False
    if r"\ldots" in target.core + answer.core:
        return target.core == answer.core
    if named_otherwise(target.name, answer.name, answer.value):
        return False
    if _other_signs(target.value, answer.value):
        return False
    return True if target.value == answer.value and target.unit == answer.unit else None


def last(groups: list[list[str]], count: int) -> list[str]:
    """Return the last `count` answers: the last groups, or boxes, or elements of the last box."""
    lists = [", ".join(dict.fromkeys(group)) for group in groups]
    if count > len(lists):
        lists = [box for group in groups for box in group]
    if count > len(lists):
        lists = elements(re.sub(r"^\s*\$*\{(.*)(?<!\\)\}\$*\s*$", r"\1", lists[-1]))
    return lists[-count:]


@lru_cache(maxsize=256)  # a group's responses have the same reference
def targets(reference: str) -> list[MathAnswer]:
    """Return the answers of a reference: several if it has boxes apart from each other.

    Raises ValueError if there is none, or if one has more than `LONGEST_ANSWER` characters.
    """
    groups = reference_part(reference)
    texts = [", ".join(dict.fromkeys(group)) for group in groups or []]
    found = [read(text) for text in dict.fromkeys(texts)]  # said again at the end: one answer
    if not found or any(not target.text for target in found):
        raise ValueError(
            f"no verifier can read the reference answer {reference[:60]!r}: it is empty, or has "
            f"more than {LONGEST_ANSWER} characters"
        )
    return found


def agree(target: MathAnswer, answer: MathAnswer, same: Same) -> bool:
    """Return whether an answer equals its reference. `same` compares what only values decide.

    If all elements of a reference have names (m=2,n=3), those of the answer are compared by name,
    or in order if they have none. The solutions x_1, x_2 of an equation have no order then.
    """
    if (right := decided(target, answer)) is not None:
        return right
    ours, theirs = ([read(part) for part in elements(one.core)] for one in (target, answer))
    names, others = ({one.name for one in some} - {""} for some in (ours, theirs))
    solutions = names == {f"x_{{{number + 1}}}" for number in range(len(ours))}
    if not 1 < len(names) == len(ours) == len(theirs):
        return same(target, answer)
    if solutions and len(others) < len(ours):
        first, second = (read(",".join(one.value for one in some)) for some in (ours, theirs))
        return agree(first, second, same)
    if others:
        ours, theirs = (sorted(some, key=lambda one: one.name) for some in (ours, theirs))
    return all(agree(*pair, same) for pair in zip(ours, theirs, strict=True))


def with_point(answer: str, target: MathAnswer) -> str:
    """Return an answer with a decimal comma (2,74) as a decimal, if its reference is one.

    For any other reference it is a list. So is 2, 74, and 2,745 is a number of thousands.
    """
    if "." not in target.value or exact_number(target.value) is None:
        return answer
    decimal = _DECIMAL_COMMA.fullmatch(answer)
    return f"{decimal[1]}.{decimal[2]}" if decimal else answer


def exact_number(text: str) -> Fraction | None:
    """Return the number that `text` is, in parentheses or not, or None for anything else."""
    match = _NUMBER.fullmatch(text[1:-1] if text[:1] + text[-1:] == "()" else text)
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


def spelled(text: str) -> str:
    """Return the letters of an answer in lower case, without article, blanks and signs."""
    bare = re.sub(r"^(?:an?|the) ", "", _TEXT.sub(r"\1", text).casefold())
    return re.sub(r"[\s().,]", "", bare)


def _word(text: str) -> str:
    r"""Return an answer that is a word. At least three letters are one, or what \text holds."""
    letters = spelled(text)
    return letters if letters.isalpha() and (len(letters) >= 3 or r"\text{" in text) else ""


def _choice(text: str) -> tuple[str, str]:
    """Return the letter and what follows it: not if that is another letter, or says otherwise."""
    match = _CHOICE.fullmatch(_TEXT.sub(r"\1", text).casefold())
    if match is None:
        return "", ""
    letter, rest = match[1] or match[2] or match[3], match[4].strip()
    other = re.search(r"^[,/?]|\([a-j]\)|^[a-j]$|\\(?:vee|wedge)", rest)
    return ("", "") if other or {*words_of(rest)} & _DENIALS else (letter, rest)


def _without_notes(text: str) -> tuple[str, str]:
    """Return `text` without notes at its end, such as "for all x", and the domain of a letter."""
    if (note := _NOTE.search(text)) and note.start():
        text = text[: note.start()].rstrip(",")
    if (domain := _DOMAIN.search(text)) and domain.start():
        return text[: domain.start()], domain[1]
    return text, ""


def _other_signs(target: str, answer: str) -> bool:
    """Return whether two values differ in what math-verify drops or mixes up.

    These are primes, "or" and "and", and the case of a letter that stands in both cases: R and r.
    """
    if sorted(_PRIMED.findall(target)) != sorted(_PRIMED.findall(answer)):
        return True
    if (r"\vee" in target) != (r"\vee" in answer) and (r"\wedge" in target) != (
        r"\wedge" in answer
    ):
        return True
    letters = set(_LETTER.findall(target))
    return bool(letters & set(map(str.swapcase, letters))) and target != answer


def _beside(part: str) -> tuple[str, str, frozenset[str]]:
    """Return the mathematics of `part`, and the unit and the words after it."""
    if (modulus := _MODULUS.search(part)) and modulus.start():
        return part[: modulus.start()], f"mod {modulus[1]}", frozenset()
    tail = _TAIL.search(part)
    if tail is None or not tail.start():
        return part, "", frozenset()
    core, text = part[: tail.start()], _spoken(tail[0])
    core = "=".join(_TAIL.sub("", side) or side for side in elements(core, "="))
    words = text.split()
    while words and words[0].rstrip("s") in MULTIPLIERS and _DECIMAL.fullmatch(core):
        core = f"{Decimal(core) * MULTIPLIERS[words.pop(0).rstrip('s')]:f}"
    for length in range(min(len(words), 6), 0, -1):
        start = " ".join(words[:length])
        if unit := unit_of(start):
            return core, unit, frozenset(words_of(" ".join(words[length:])))
    return core, "", frozenset(words_of(" ".join(words)))


def _spoken(tail: str) -> str:
    r"""Return the words of \text{km}/\text{h}, ^{\circ} and \%."""
    text = _TEXT.sub(r" \1 ", tail).replace(r"^{\circ}", " degree ").replace(r"\%", " % ")
    text = re.sub(r"\s*\^\{(-?[0-9])\}", r"^\1", text.replace(r"\cdot", " "))
    return " ".join(re.sub(r"[(),]", " ", re.sub(r"\s*/\s*", "/", text)).split())


def _mixed(core: str) -> str:
    """Return mathematics among words, with each unit and word in its short form."""

    def short(text: re.Match[str]) -> str:
        spoken = re.sub(r"^and\b|\band$|[,.;]", "", text[1].strip()).strip()
        return f"<{unit_of(spoken) or ' '.join(words_of(spoken))}>"

    return re.sub(r"[,.]*(<[^>]*>)[,.]*", r"\1", _TEXT.sub(short, core)).replace("<>", "")
