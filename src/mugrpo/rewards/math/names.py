"""What stands before "=" in an answer, and whether two of them name the same."""

import re

from mugrpo.rewards.math.units import OTHERWISE, words_of

_MODULUS = re.compile(r"\\pmod\{([^{}]*)\}$")
_LETTER = re.compile(
    r"(?P<symbol>[A-Za-z]|\\(?:[a-z]?eta|alpha|gamma|delta|theta|lambda|mu|rho|sigma|tau|phi|psi|omega)|[A-Za-z]{2})"
    r"(?:_(?P<below>\{[^{}]*\}|[0-9a-z]))?(?P<primes>'*)"
)
_FUNCTION = re.compile(r"(?P<symbol>[f-hF-Hu-z])(?P<primes>'*)\((?:[a-z]|-?[0-9]+)\)")
_WORDS = re.compile(r"[A-Za-z][A-Za-z ]{2,}|\\text\{[^{}]*\}.*")
_POINT = re.compile(r"\([A-Za-z](?:,[A-Za-z])*\)")
_LENGTH = re.compile(r"\|([A-Z]{2})\||\\(?:overline|bar)\{([A-Z]{2})\}")
# What stands for a value in a way that only people read: P(X>2), f'(3), \lim a_n, \det A
_LABEL = re.compile(
    r"(?:P|Pr|E|Var|Cov|n|[fghFGH]'*)\(.*[A-Za-z].*\)|[A-Za-z]'+(?:\(.*\))?|\\text\{[^{}]*\}.*"
    r"|\\(?:int|sum|prod)(?![a-z]).*|\\frac\{d[a-z]\}\{d[a-z]\}|[A-Za-z]\([a-z]\)_\{\\(?:max|min)\}"
    r"|m?\\(?:lim|det|max|min|gcd|lcm|angle|vec|dim|deg|Pr)(?![a-z]).*[A-Za-z].*"
    r"|\\begin\{pmatrix\}[^0-9]*\\end\{pmatrix\}"
)


def elements(mathematics: str, separator: str = ",") -> list[str]:
    """Split a list at its commas outside of brackets: "1", "(2,3)" of "1,(2,3)".

    With the separator "=", split a chain of equalities into its sides.
    """
    pieces, depth, before = [""], 0, ""
    for character in mathematics:
        depth += (character in "{([") - (character in "})]")
        if character == separator and depth == 0 and before not in ("\\", *"<>!:"):
            pieces.append("")
        else:
            pieces[-1] += character
        before = character
    return pieces


def without_name(core: str) -> tuple[str, str, str]:
    """Return the name before the only "=", the core, and the value. A label leaves the core too."""
    modulus = _MODULUS.search(core)
    for sign in (r"\equiv",) if modulus else (r"\approx", r"\in"):
        name, found, rest = core.partition(sign)
        if found and _is_name(name) and not rest[:1].isalpha():
            rest = rest.strip()
            return name, core if sign == r"\approx" else rest, rest
    parts = elements(core, "=")
    if len(parts) != 2 or not parts[1]:
        return "", core, core
    name, value = parts
    if {*words_of(" ".join(re.findall(r"\\text\{([^{}]*)\}", name)))} & OTHERWISE:
        return "", core, core
    if length := _LENGTH.fullmatch(name):
        return length[1] or length[2], value, value
    if _LABEL.fullmatch(name) or (_is_name(name) and r"\begin{pmatrix}" in value):
        return name, value, value
    if _is_name(name):
        return name, core, value
    return (value, core, name) if re.fullmatch("[A-Za-z]", value) else ("", core, core)


def named_otherwise(target: str, answer: str, value: str) -> bool:
    """Return whether two names differ that must not: x and y, x_1 and x_2, P(X>2) and P(X>3).

    `value` is the answer's: x=2y is y=x/2. What can stand for the same is not compared: y and
    f(x), S and the words "the area".
    """
    if not target or not answer or target == answer:
        return False
    ours, theirs = _LETTER.fullmatch(target), _LETTER.fullmatch(answer)
    if ours and theirs:
        below = ours["below"], theirs["below"]
        return (_other(ours, theirs) and ours["symbol"] not in value) or (
            all(below) and below[0] != below[1]
        )
    if letter := ours or theirs:  # y and f(x), P and P(A); but f is not g(x), and y' not f(x)
        function = _FUNCTION.fullmatch(answer if ours else target)
        if function is None:
            return False
        functions = letter["symbol"] in "fghFGH" and _other(letter, function)
        return functions or letter["primes"] != function["primes"]
    if _WORDS.fullmatch(target) or _WORDS.fullmatch(answer):
        words = [{*words_of(name.removeprefix(r"\text").casefold())} for name in (target, answer)]
        both = all(map(_WORDS.fullmatch, (target, answer)))
        return both and not words[0] & words[1]
    return len({re.sub(r"^\\?Pr(?=\()", "P", name) for name in (target, answer)}) > 1


def _other(ours: re.Match[str], theirs: re.Match[str]) -> bool:
    """Return whether two letters differ. Of two letters for a segment, the order does not count."""
    symbols = [sorted(match["symbol"]) for match in (ours, theirs)]
    if not all(match["symbol"].isupper() for match in (ours, theirs)):
        symbols = [[match["symbol"].casefold()] for match in (ours, theirs)]
    return symbols[0] != symbols[1] or ours["primes"] != theirs["primes"]


def _is_name(name: str) -> bool:
    return any(kind.fullmatch(name) for kind in (_LETTER, _WORDS, _POINT, _FUNCTION))
