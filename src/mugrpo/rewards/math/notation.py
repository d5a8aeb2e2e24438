r"""One notation for what LaTeX, unicode and plain text write in many ways.

Both verifiers (`math`, `numeric`) read it. Signs that have several names get one (`SAME`), `RULES`
are applied, and the result is written again without needless blanks and braces. The page of
verdicts (`make site`) shows both tables, and a test applies each rule to its example. A rule may
change how an answer looks, never its value.
"""

import math
import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

# LaTeX -> other ways to write the same: commands, characters and signs of programs.
SAME = {
    "": '\u200b \u2060 \ufeff " \u201c \u201d',
    "-": "\u2010 \u2011 \u2012 \u2013 \u2014 \u2212 \ufe63",
    "'": "\u2018 \u2019 \u2032",
    "/": "\u00f7 \u2044 \u2215",
    ",": "\u3001",
    ".": "\u3002",
    "=": ":=",
    "<": r"\lt",
    ">": r"\gt",
    "|": r"\mid \vert \lvert \rvert",
    r"\{": "\\lbrace \uff5b",
    r"\}": "\\rbrace \uff5d",
    r"\\": r"\cr",
    r"\frac": r"\dfrac \tfrac \cfrac",
    r"\binom": r"\dbinom \tbinom",
    r"\cdot ": "\\times \\ast \\cdotp \u00d7 \u00b7 \u22c5 \u2219",
    r"\pm ": "\u00b1",
    r"\infty ": "\u221e",
    r"\le ": "\\leq \\leqslant <= \u2264 \u2a7d",
    r"\ge ": "\\geq \\geqslant >= \u2265 \u2a7e",
    r"\ne ": "\\neq != \u2260",
    r"\approx ": "\u2248",
    r"\equiv ": "\u2261",
    r"\cup ": "\u222a",
    r"\cap ": "\u2229",
    r"\in ": "\u2208",
    r"\mod ": r"\bmod",
    r"\emptyset ": "\\varnothing \u2205",
    r"\setminus ": "\\smallsetminus \\backslash \u2216",
    r"\wedge ": r"\land",
    r"\vee ": r"\lor",
    r"\to ": "\\rightarrow \\longrightarrow \u2192",
    r"\ldots ": "\\dots \\dotsc \\dotsb \\cdots ... \u2026",
    r"\angle ": "\u2220",
    r"^{\circ}": "\\degree \\degrees \\textdegree \u00b0 \u00ba \u02da",
    r"\log_{10}": r"\lg",
    r"\mathbb{R}": "\\R \u211d",
    r"\mathbb{N}": "\\N \u2115",
    r"\mathbb{Z}": "\\Z \u2124",
    r"\mathbb{Q}": "\\Q \u211a",
    r"\mathbb{C}": "\u2102",
    " euro ": "\\euro \u20ac",
    " pound ": "\\pounds \u00a3",
    " yen ": "\u00a5",
    " rupee ": "\u20b9",
}
_LATEX = {way: latex for latex, ways in SAME.items() for way in ways.split()}
_LATEX |= {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5B)}  # full-width ASCII
for _code in range(0x391, 0x3CA):  # Greek letters
    _name = unicodedata.name(chr(_code), "").removeprefix("GREEK ").lower().split()
    if len(_name) == 3 and _name[1] == "letter":
        _LATEX[chr(_code)] = f"\\{_name[2].capitalize() if _name[0] == 'capital' else _name[2]} "
_E = r"(?![A-Za-z])"  # the end of a command's name
_SAME = re.compile("|".join(re.escape(w) + _E * (w[0] == "\\") for w in sorted(_LATEX)[::-1]))
_CHARACTERS = {ord(way): latex for way, latex in _LATEX.items() if not way.isascii()}


class Rule(NamedTuple):
    """What is rewritten, and an example: what is written, and what `normal` makes of it."""

    pattern: str
    replacement: str | Callable[[re.Match[str]], str]
    written: str
    becomes: str


_NUMBERS = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|"
    "sixteen|seventeen|eighteen|nineteen|twenty"
)


def _thousands(match: re.Match[str]) -> str:
    """Return a number without its commas. In brackets, they separate coordinates: (1,200)."""
    before = match.string[: match.start()]
    inside = sum(before.count(c) for c in "([{") > sum(before.count(c) for c in ")]}")
    return match[0] if inside else match[0].replace(",", "")


def _exact_decimal(match: re.Match[str]) -> str:
    """Return the fraction that a decimal with a period is: 1/3 of 0.333..."""
    whole, first, period = match.groups()
    nines = 10 ** len(first) * (10 ** len(period) - 1)
    above = int(whole + first + period) - int(whole + first)
    divisor = math.gcd(above, nines)
    return rf"\frac{{{above // divisor}}}{{{nines // divisor}}}"


def _connected(match: re.Match[str]) -> str:
    """Return what "and" or "or" means: a comma in a list, but not between inequalities."""
    if not re.search(r"[<>]|\\(?:[lg]e|ne)(?![a-z])", match.string):
        return ","
    return r"\vee " if "or" in match[0] else r"\wedge "


_WORDY = r"\\(?:text(?:rm|bf|it|sf|tt|normal|up)?|mbox|hbox|mathrm|operatorname\*?)\s*"
_FUNCTIONS = (
    "arcsin|arccos|arctan|arc?sinh|arc?cosh|arc?tanh|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log"
    "|exp|gcd|lcm|max|det"
)
_STYLES = (
    r"(?:display|text|script)style|limits|nolimits|bf|rm|it|sf|tt|tiny|small|[lL]arge|LARGE|huge|"
    r"boldsymbol|bold|bm|pmb|math(?:bf|sf|it|tt|cal|normal)|underline|emph"
)
_UNIT_LETTERS = "msghlLNJWV"  # \text{m} is a meter, \text{x} the letter x
_AFTER_NUMBER = (
    r"(?:cm|mm|km|kg|mg|ml|mL|ft|lb|oz|mi|min|in|hr|am|pm|AM|PM|BC|AD|[ap]\.m\.?)(?![A-Za-z])"
)

# Applied in this order, each to all of an answer. A rule a line.
RULES = [
    # Looks
    Rule(r"(?<![\\$])\$(?=\S)([^$]+)(?<=[^\s\\])\$(?![0-9$])", r"\1", "$7$ cm", r"7\text{cm}"),
    Rule(r"^(?:\$+|\\[(\[])|(?:\$+|\\[)\]])\s*$", "", r"\(7\)", "7"),
    Rule(r"(?:\\[,;:!]?\s*)+$|(?<![.\\])[.,;:]\s*$", "", r"7.\ ", "7"),
    Rule(r"^\s*=", "", "= 7", "7"),
    Rule(r"\*\*|^[*_`']+|[*_`]+$", "", "**7**", "7"),
    Rule(rf"\\(?:m?left|m?right|middle|[bB]igg?[lrm]?)(?:\.|{_E})", "", r"\left(1,2\right)", "(1,2)"),
    Rule(rf"\\(?:{_STYLES}){_E}", "", r"\boldsymbol{7}", "7"),
    Rule(r"\\(?:text)?color(?:box)?\{[^{}]*\}", "", r"\textcolor{red}{7}", "7"),
    Rule(r"[(\[]\s*\\begin\{array\}\s*(?:\{[^{}]*\})?(.*)\\end\{array\}\s*[)\]]", r"\\begin{pmatrix}\1\\end{pmatrix}", r"\left(\begin{array}{cc} 1 & 2 \end{array}\right)", r"\begin{pmatrix}1&2\end{pmatrix}"),
    Rule(r"\\begin\{(?:align(?:ed)?\*?|gathered|split|array)\}(?:\{[clr|]+\})?((?:(?!\\\\|\\begin).)*?)(?:\\\\\s*)?\\end\{\w+\*?\}", r"\1", r"\begin{array}{c} 7 \end{array}", "7"),
    Rule(rf"\{{([^{{}}]*)\\choose{_E}([^{{}}]*)\}}", r"\\binom{\1}{\2}", r"{5 \choose 2}", r"\binom{5}{2}"),
    Rule(r"\\variable\{([^{}]*)\}", r"\1", r"\variable{x}", "x"),
    Rule(r"(?<!\\)&\s*=", "=", "x &= 7", "x=7"),
    Rule(r"(?:\\\\\s*)?\\(begin|end)\{[bBp]?(?:small)?matrix\*?\}(?:\[[a-z]\])?", r"\\\1{pmatrix}", r"\begin{bmatrix}1\\\end{bmatrix}", r"\begin{pmatrix}1\end{pmatrix}"),
    Rule(r"\\\\\s*\[[0-9.]+[a-z]+\]", r"\\\\", r"1\\[2pt]2", r"1\\2"),
    Rule(r"(?<!\\)\\\\(?=(?:[dt]?frac|sqrt|left|right|text|pi|cdot|times|infty)(?![A-Za-z]))", r"\\", r"\\frac12", r"\frac{1}{2}"),
    # Digits
    Rule(r"(?<=[0-9])(?:\s*\{\s*,\s*\}|,\s*\\!)\s*(?=[0-9]{3})|(?<!\\)\\!\s*", "", "1{,}234", "1234"),
    Rule(r"(?<!\\)((?:\\\\)*)\\[,:;> ]|\\q?quad(?![A-Za-z])|~|\\hspace\{[^{}]*\}", r"\1 ", r"7\,x", "7x"),
    Rule(r"(?<![\w.])[0-9]{1,3}(?:[ _'][0-9]{3})+(?![0-9])", lambda m: re.sub("[ _']", "", m[0]), "1 000", "1000"),
    Rule(r"(?<![0-9.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])", _thousands, "1,234", "1234"),
    Rule(r"(?<![\w.])\.\s*(?=[0-9]|\\(?:overline|bar|dot))", "0.", ".5", "0.5"),
    Rule(r"([0-9]+)\.([0-9]*?)([0-9]{1,6}?)\3{1,}\s*\\ldots(?![A-Za-z])", _exact_decimal, "0.333...", r"\frac{1}{3}"),
    Rule(r"([0-9]+)\.([0-9]*)\\(?:overline|bar|dot)\s*\{?([0-9]+)\}?(?![0-9])", _exact_decimal, r"0.1\overline{6}", r"\frac{1}{6}"),
    # Signs
    Rule(r"C_\{?([0-9]+)\}?\^\{?([0-9]+)\}?", r"\\binom{\1}{\2}", "C_5^2", r"\binom{5}{2}"),
    Rule(r"(?<=[0-9)])\s*\*(?!\*)", r"\\cdot ", "2 * 3", r"2\cdot3"),
    Rule(r"\\\{\s*\\\}", r"\\emptyset ", r"\{\}", r"\emptyset"),
    Rule(r"(?<=R\})\s*-\s*(?=\\\{)", r"\\setminus ", r"\mathbb{R} - \{2\}", r"\mathbb{R}\setminus\{2\}"),
    Rule(r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![A-Za-z]))", "'", r"f^{\prime}(x)", "f'(x)"),
    Rule(rf"{_WORDY}\{{\s*\^\{{\\circ\}}\s*([CF])\s*\}}|\^\s*\{{?\s*\\circ\s*\}}?\s*(?:{_WORDY}\{{\s*([CF])\s*\}}|([CF]){_E})", r"\\text{degree\1\2\3}", r"25^\circ\mathrm{C}", r"25\text{degreec}"),
    Rule(r"(?<!\\)%", r"\\%", "50%", r"50\%"),
    Rule(r"(^|[(\[,])\s*\+(?=\\infty|[0-9])", r"\1", r"(1,+\infty)", r"(1,\infty)"),
    Rule(r"\^\s*-\s*([0-9]+|[a-z])", r"^{-\1}", "x^-1", "x^{-1}"),
    Rule(rf"\(\s*(?:\\?mod|{_WORDY}\{{\s*mod\s*\}})\s*([^()]+)\)", r"\\pmod{\1}", r"3\ (\mathrm{mod}\ 7)", r"3\pmod{7}"),
    Rule(rf"(\\equiv[^,;]*?)(?:\\mod(?![A-Za-z])|{_WORDY}\{{\s*mod\s*\}})\s*\{{?([^{{}},;]+)\}}?", r"\1\\pmod{\2}", r"x \equiv 3 \mod 7", r"x\equiv3\pmod{7}"),
    Rule(r"(?<![0-9.])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])", r"\1\\frac{\2}{\3}", "3 1/2", r"3\frac{1}{2}"),
    Rule(r"((?:^|\\in\s*))\](?=[^\[\]]*,[^\[\]]*[\[\]]$)", r"\1(", "]1,2]", "(1,2]"),
    Rule(r"((?:^|\\in\s*)[\[(][^\[\]]*,[^\[\]]*)\[$", r"\1)", "[1,2[", "[1,2)"),
    # Words
    Rule(rf"{_WORDY}\{{\s*({_FUNCTIONS}|pi)\s*\}}|(?<![\\A-Za-z])({_FUNCTIONS}|sqrt|pi)(?![A-Za-z])", r"\\\1\2 ", r"\mathrm{sin}\,x", r"\sin x"),
    Rule(rf"(?:{_WORDY}\{{\s*floor\s*\}}|\\?\bfloor)\s*\(((?:[^()]|\([^()]*\))*)\)", r"\\lfloor \1\\rfloor ", r"\operatorname{floor}(x)", r"\lfloor x\rfloor"),
    Rule(rf"(?:{_WORDY}\{{\s*ceil\s*\}}|\\?\bceil)\s*\(((?:[^()]|\([^()]*\))*)\)", r"\\lceil \1\\rceil ", r"\operatorname{ceil}(x)", r"\lceil x\rceil"),
    Rule(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", "sqrt(2)", r"\sqrt{2}"),
    Rule(r"(?<![\\A-Za-z])inf(?:inity)?(?![A-Za-z])", r"\\infty ", "infinity", r"\infty"),
    Rule(rf"{_WORDY}\{{([^A-Za-z{{}}]*|\s*\([A-Za-z]\)\s*|\s*\\[A-Za-z]+\s*)\}}", r"\1 ", r"\text{(B)}", "(B)"),
    Rule(rf"{_WORDY}\{{(\s*-?[0-9][^{{}}]*)\}}", lambda m: re.sub(r"[^0-9]*[A-Za-z][^0-9]*", r"\\text{\g<0>}", m[1]), r"\text{12 cm}", r"12\text{cm}"),
    Rule(rf"{_WORDY}\{{([^{{}}]*)\}}", r"\\text{\1}", r"\mathrm{km}", r"\text{km}"),
    Rule(r"\\frac\s*\{\s*\\text\{([^{}]*)\}\s*\}\s*\{\s*\\text\{([^{}]*)\}\s*\}", r"\\text{\1/\2}", r"7\frac{\text{km}}{\text{h}}", r"7\text{km/h}"),
    Rule(r"^(-?)\s*(?:US)?\\?\$\s*(?=.)(.*)$", r"\1\2\\text{dollar}", r"\$5", r"5\text{dollar}"),
    Rule(r"^(-?)\s*(?:\\text\{\s*)?(USD|EUR|GBP|Rs|euro|pound|yen|rupee)\.?\s*\}?\s*(?=.)(.*)$", r"\1\3\\text{\2}", "\u20ac5", r"5\text{euro}"),
    Rule(r"(?<=[0-9])\s*(?:\\text\{)?\s*(?:[Rr]|rem\.?|remainder)\s*\}?\s*(?=[0-9])", r"\\text{remainder}", r"3\text{ R }2", r"3\text{remainder}2"),
    Rule(rf"(?<![0-9}})/] )(?<![0-9}})/])\\text\{{\s*([A-Za-z])\s*\}}|\\text\{{\s*(?![{_UNIT_LETTERS}]\s*\}})([A-Za-z])\s*\}}", r" \1\2 ", r"7\mathrm{x}", "7x"),
    Rule(rf"\\text\{{\s*({_NUMBERS})\s*\}}|^({_NUMBERS})$", lambda m: str(_NUMBERS.split("|").index((m[1] or m[2]).lower())), r"\text{seven}", "7"),
    Rule(r"^\\text\{\s*(?:exactly|only)\s*\}", "", r"\text{exactly }7", "7"),
    Rule(r"^(?:\\text\{)?\s*(?:[Tt]he\s+)?(?:[Ff]inal\s+|[Cc]orrect\s+)?[Aa]nswer(?:\s+is|\s*[:=])[\s:}]*", "", r"\text{The answer is } 7", "7"),
    Rule(r",?\s*\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}\s*,?|,?\s+(?:and|or)\s+(?![^{}]*\})", _connected, r"1 \text{ or } 2", "1,2"),
    Rule(r"(?<=[0-9])(?:\^?\{?\\text\{\s*(?:st|nd|rd|th)\s*\}\}?|(?:st|nd|rd|th)$)", "", r"5^{\text{th}}", "5"),
    Rule(rf"(?<=[0-9}}])\s*({_AFTER_NUMBER})|(?<=[0-9}}])\s+((?:[A-Za-z]+ )*[A-Za-z]{{3,}}(?:[ /][A-Za-z]+)*)", r"\\text{\1\2}", "12 cm", r"12\text{cm}"),
    Rule(r"^\\forall[^,]*,|^[a-z]\s*\\in\s*\\mathbb\{R\},(?=.*<|.*>|.*\\[lg]e|.*\\ne)", "", r"\forall x>0, f(x)=0", "f(x)=0"),
    Rule(r"\s*\\text\{\s*(?:(?:square|sq\.?|cubic) )?units?\s*\}(?:\s*\^\{?[23]\}?)?$", "", r"7\text{ square units}", "7"),
    Rule(r"(\\(?:sin|cos|tan|cot|sec|csc))\s*[({]?\s*([0-9.]+)\s*\^\s*\{?\\circ\}?\s*[)}]?", r"\1(\2\\cdot\\frac{\\pi}{180})", r"\sin 30^\circ", r"\sin(30\cdot\frac{\pi}{180})"),
]  # fmt: skip


_RAISED = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b\u207f\u2071"
_LOWERED = "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089\u208a\u208b"
_SHIFTED = re.compile(f"[{_RAISED}]+|[{_LOWERED}]+")
_ROOT = re.compile("([\u221a\u221b\u221c])\\s*(?:\\(([^()]*)\\)|([0-9]+|[A-Za-z])|(?=\\{))")
_INDEX = {"\u221a": "", "\u221b": "[3]", "\u221c": "[4]"}
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]", re.ASCII)


def ascii_latex(text: str) -> str:
    """Return `text` with unicode fractions, roots, superscripts, digits and signs as LaTeX."""
    if text.isascii():
        return text
    text = _ROOT.sub(_root, text)
    text = _SHIFTED.sub(_shifted, text)
    text = _VULGAR.sub(_vulgar, text).translate(_CHARACTERS)
    return _NOT_ASCII.sub(lambda m: str(unicodedata.digit(m[0], m[0])), text)


def _root(sign: re.Match[str]) -> str:
    return rf"\sqrt{_INDEX[sign[1]]}" + (f"{{{sign[2] or sign[3]}}}" if sign[2] or sign[3] else "")


def _shifted(characters: re.Match[str]) -> str:
    mark = "^" if characters[0][0] in _RAISED else "_"
    plain = unicodedata.normalize("NFKC", characters[0]).translate(_CHARACTERS)
    return mark + (plain if len(plain) == 1 else f"{{{plain}}}")


def _vulgar(character: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", character[0]).partition("\u2044")
    return rf"\frac{{{above}}}{{{below}}}"


def normal(answer: str) -> str:
    r"""Return an answer in the one notation, without needless blanks and braces.

    Words stand in \text{...}, in lower case. A currency sign becomes a word after the amount.
    Raises RecursionError if its braces are nested too deeply.
    """
    text = _SAME.sub(lambda match: _LATEX[match[0]], ascii_latex(answer).strip())
    for rule in RULES:
        text = re.sub(rule.pattern, rule.replacement, text, flags=re.DOTALL)
    text = _sequence(_TOKEN.findall(text.replace("$", ""))[::-1])
    return re.sub(r"^[,;: ]+|(?:\\\\|[,;:. ])+$", "", text)


_TOKEN = re.compile(
    r"\\text\{[^{}]*\}|\\(?:begin|end)\{[a-z]*\}|\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|\s+|.",
    re.DOTALL,
)
_ARGUMENTS = {"^": 1, "_": 1, r"\frac": 2, r"\binom": 2} | dict.fromkeys(
    (r"\sqrt", r"\mathbb", r"\pmod", r"\overline", r"\overrightarrow", r"\vec", r"\hat", r"\bar"), 1
)


def _sequence(tokens: list[str], inside: bool = False) -> str:
    """Return `tokens` as text, up to their end or the closing brace. They are popped from the back.

    Each argument stands in braces, and nothing else does.
    """
    parts = [""]
    apart = False
    while tokens:
        token = tokens.pop()
        if token.isspace():
            apart = True
            continue
        if token == "}" and inside:
            break
        part = _sequence(tokens, True) if token == "{" else _written(token, parts[-1], tokens)
        if part and _touch(parts[-1], part, apart):
            parts.append(" ")
        parts.append(part)
        apart = False
    return "".join(parts)


def _written(token: str, before: str, tokens: list[str]) -> str:
    """Write a token that stands after `before` with its arguments."""
    if token.startswith(r"\text{"):
        return rf"\text{{{' '.join(token[6:-1].lower().split())}}}"
    written = token
    if token == r"\sqrt" and _next(tokens) == "[":
        while tokens and not written.endswith("]"):
            written += tokens.pop()
    power = token in ("^", "_") and before != r"\log"
    for _ in range(_ARGUMENTS.get(token, 0)):
        written += f"{{{_argument(tokens, power)}}}"
    return written


def _argument(tokens: list[str], power: bool) -> str:
    """Write an argument. Without braces it is one digit, or a power's number."""
    if not _next(tokens):
        return ""
    token = tokens.pop()
    if token == "{":
        return _sequence(tokens, True)
    if token[0].isdigit() and len(token) > 1 and not power:
        tokens.append(token[1:])
        token = token[0]
    return _written(token, "", tokens)


def _next(tokens: list[str]) -> str:
    while tokens and tokens[-1].isspace():
        tokens.pop()
    return tokens[-1] if tokens else ""


def _touch(left: str, right: str, apart: bool) -> bool:
    """Return whether two pieces would be read as one without a blank between them."""
    if left[-1:].isdigit() and right[:1].isdigit():
        return apart
    return left.startswith("\\") and left[1:].isalpha() and right[:1].isalpha()
