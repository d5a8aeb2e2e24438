r"""One notation for what LaTeX, unicode and plain text write in many ways: both graders read it.

Characters become LaTeX, `RULES` are applied, and the result is written again without needless
blanks and braces. docs/verification.md shows the rules, and a test applies each rule to its
example. A rule may change how an answer looks, never its value.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple


class Rule(NamedTuple):
    """What is rewritten, and an example: what is written, and what `normal` makes of it."""

    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]
    written: str
    becomes: str


def _rule(
    pattern: str, replacement: str | Callable[[re.Match[str]], str], written: str, becomes: str
) -> Rule:
    return Rule(re.compile(pattern, re.DOTALL), replacement, written, becomes)


_CURRENCIES = {"\u20ac": "euro", "\u00a3": "pound", "\u00a5": "yen", "\u20b9": "rupee"}
_SIGNS = "".join(_CURRENCIES)
_CURRENCIES |= {"EUR": "euro", "euro": "euro", "GBP": "pound", "pounds": "pound", "Rs": "rupee"}
_NUMBERS = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|"
    "sixteen|seventeen|eighteen|nineteen|twenty"
)


def _money(match: re.Match[str]) -> str:
    sign = re.sub(r"\\text\{\s*|[\s\\{}.]", "", match[2])
    currency = _CURRENCIES.get(sign, "dollar")
    return rf"{match[1]}{match[3]}\text{{{currency}}}"


def _thousands(match: re.Match[str]) -> str:
    """Return a number without its commas. In brackets, they separate coordinates: (1,200)."""
    before = match.string[: match.start()]
    inside = sum(before.count(c) for c in "([{") > sum(before.count(c) for c in ")]}")
    return match[0] if inside else match[0].replace(",", "")


def _exact_decimal(match: re.Match[str]) -> str:
    """Return the fraction that a decimal with a period is: 1/3 of 0.333..."""
    whole, first, period = match[1], match[2], "".join(filter(None, match.groups()[2:]))
    nines = 10 ** len(first) * (10 ** len(period) - 1)
    above = int(whole + first + period) - int(whole + first)
    divisor = math.gcd(above, nines)
    return rf"\frac{{{above // divisor}}}{{{nines // divisor}}}"


def _numbers_and_words(match: re.Match[str]) -> str:
    pieces = re.split(r"(-?[0-9][0-9.,:/]*(?<![.,]))", match[1])
    return "".join(
        piece if place % 2 or not re.search("[A-Za-z]", piece) else rf"\text{{{piece}}}"
        for place, piece in enumerate(pieces)
    )


def _connected(match: re.Match[str]) -> str:
    """Return what "and" or "or" means: a comma in a list, but not between inequalities."""
    if not re.search(r"[<>]|\\(?:[lg]e|ne)(?![a-z])", match.string):
        return ","
    return r"\vee " if "or" in match[0] else r"\wedge "


_E = r"(?![A-Za-z])"  # the end of a command's name
_WORDY = r"\\(?:text(?:rm|bf|it|sf|tt|normal|up)?|mbox|hbox|mathrm|operatorname\*?)\s*"
_FUNCTIONS = (
    "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|lg|exp|gcd|lcm|max|min|det"
)
_UNIT_LETTERS = "msghlLNJWV"  # \text{m} is a meter, \text{x} the letter x
_AFTER_NUMBER = (
    r"(?:cm|mm|km|kg|mg|ml|mL|ft|lb|oz|mi|in|hr|am|pm|AM|PM|BC|AD|[ap]\.m\.?)(?![A-Za-z])"
)

# Applied in this order, each to all of an answer. A rule a line.
RULES = [
    # Looks
    _rule(r"^(?:\$+|\\[(\[])|(?:\$+|\\[)\]])\s*$", "", "$7$", "7"),
    _rule(r"(?:\\[,;:!]?\s*)+$|(?<![.\\])[.,;:]\s*$|^\\therefore(?![A-Za-z])", "", r"7.\ ", "7"),
    _rule(r":=", "=", "x := 7", "x=7"),
    _rule(r"^\s*=", "", "= 7", "7"),
    _rule(r"\*\*|^[*_`']+|[*_`]+$", "", "**7**", "7"),
    _rule(rf"\\(?:left|right|middle|[bB]igg?[lrm]?)(?:\.|{_E})", "", r"\left(1,2\right)", "(1,2)"),
    _rule(rf"\\(?:(?:display|text|script)style|limits|nolimits|normalsize|footnotesize|scriptsize|tiny|small|[lL]arge|LARGE|huge|bf|rm|it|sf|tt){_E}", "", r"{\bf 7}", "7"),
    _rule(rf"\\(?:boldsymbol|bold|bm|pmb|math(?:bf|sf|it|tt|cal|normal)|underline|emph|smash|framebox|ensuremath){_E}", "", r"\boldsymbol{7}", "7"),
    _rule(r"\\(?:text)?color(?:box)?\{[^{}]*\}", "", r"\textcolor{red}{7}", "7"),
    _rule(r"\\cr(?![A-Za-z])", r"\\\\", r"\begin{pmatrix}1 \cr 2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    _rule(r"[(\[]\s*\\begin\{array\}\s*(?:\{[^{}]*\})?(.*)\\end\{array\}\s*[)\]]", r"\\begin{pmatrix}\1\\end{pmatrix}", r"\left(\begin{array}{cc} 1 & 2 \end{array}\right)", r"\begin{pmatrix}1&2\end{pmatrix}"),
    _rule(r"\\begin\{(?:align(?:ed)?\*?|gathered|split|array)\}(?:\{[clr|]+\})?((?:(?!\\\\|\\begin).)*?)(?:\\\\\s*)?\\end\{\w+\*?\}", r"\1", r"\begin{array}{c} 7 \end{array}", "7"),
    _rule(rf"\{{([^{{}}]*)\\choose{_E}([^{{}}]*)\}}", r"\\binom{\1}{\2}", r"{5 \choose 2}", r"\binom{5}{2}"),
    _rule(r"^\s*\{([^{}]*)\}\s*$", r"\1", "{58,500}", "58500"),
    _rule(r"(?<!\\)&\s*=", "=", "x &= 7", "x=7"),
    _rule(r"\\begin\{[bB]?(?:small)?matrix\*?\}(?:\[[a-z]\])?", r"\\begin{pmatrix}", r"\begin{bmatrix}1\end{bmatrix}", r"\begin{pmatrix}1\end{pmatrix}"),
    _rule(r"(?:\\\\)?\s*\\end\{[bBp]?(?:small)?matrix\*?\}", r"\\end{pmatrix}", r"\begin{pmatrix}1\\\end{pmatrix}", r"\begin{pmatrix}1\end{pmatrix}"),
    _rule(r"\\\\\s*\[[0-9.]+[a-z]+\]", r"\\\\", r"1\\[2pt]2", r"1\\2"),
    # Digits
    _rule(r"(?<=[0-9])(?:\{,\}|,\s*\\!)\s*(?=[0-9]{3})|(?<!\\)\\!\s*", "", "1{,}234", "1234"),
    _rule(r"(?<!\\)((?:\\\\)*)\\[,:;> ]|\\q?quad(?![A-Za-z])|~|\\hspace\{[^{}]*\}", r"\1 ", r"7\,x", "7x"),
    _rule(r"(?<![\w.\\])([0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]+)(?!\w)", r"\1\\cdot 10^{\2}", "6.3e6", r"6.3\cdot10^{6}"),
    _rule(r"(?<![\w.])[0-9]{1,3}(?:[ _][0-9]{3})+(?![0-9])", lambda m: re.sub("[ _]", "", m[0]), "1 000", "1000"),
    _rule(r"(?<![0-9.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])", _thousands, "1,234", "1234"),
    _rule(r"(?<![\w.])\.\s*(?=[0-9]|\\(?:overline|bar|dot))", "0.", ".5", "0.5"),
    _rule(rf"\\(?:dots[cbmio]?|cdots|ldots|hdots){_E}|\.\.\.", r"\\ldots ", r"1,2,\dots,n", r"1,2,\ldots,n"),
    _rule(r"([0-9]+)\.([0-9]*?)([0-9]{1,6}?)\3{1,}\s*\\ldots(?![A-Za-z])", _exact_decimal, "0.333...", r"\frac{1}{3}"),
    _rule(r"([0-9]+)\.([0-9]*)\\dot\{?([0-9])\}?([0-9]*)\\dot\{?([0-9])\}?", _exact_decimal, r"0.\dot{1}\dot{8}", r"\frac{2}{11}"),
    _rule(r"([0-9]+)\.([0-9]*)\\(?:overline|bar|dot)\s*\{?([0-9]+)\}?(?!\\dot|[0-9])", _exact_decimal, r"0.1\overline{6}", r"\frac{1}{6}"),
    # Signs
    _rule(rf"\\[dtc]frac{_E}", r"\\frac", r"\dfrac12", r"\frac{1}{2}"),
    _rule(rf"\\[dt]binom{_E}", r"\\binom", r"\dbinom52", r"\binom{5}{2}"),
    _rule(r"C_\{?([0-9]+)\}?\^\{?([0-9]+)\}?", r"\\binom{\1}{\2}", "C_5^2", r"\binom{5}{2}"),
    _rule(rf"\\leq?(?:slant)?{_E}|<=", r"\\le ", r"x \leqslant 3", r"x\le3"),
    _rule(rf"\\geq?(?:slant)?{_E}|>=", r"\\ge ", "x >= 3", r"x\ge3"),
    _rule(rf"\\neq{_E}|!=", r"\\ne ", r"x \neq 3", r"x\ne3"),
    _rule(rf"\\lt{_E}", "<", r"x \lt 3", "x<3"),
    _rule(rf"\\gt{_E}", ">", r"x \gt 3", "x>3"),
    _rule(rf"\\(?:times|ast|cdotp){_E}|(?<=[0-9)])\s*\*(?!\*)", r"\\cdot ", r"2 \times 3", r"2\cdot3"),
    _rule(rf"\\varnothing{_E}|\\\{{\s*\\\}}", r"\\emptyset ", r"\{\}", r"\emptyset"),
    _rule(rf"\\(?:smallsetminus|backslash){_E}|(?<=R\}})\s*-\s*(?=\\\{{)", r"\\setminus ", r"\mathbb{R} - \{2\}", r"\mathbb{R}\setminus\{2\}"),
    _rule(rf"\\(?:mid|[lr]?vert){_E}", "|", r"a \mid b", "a|b"),
    _rule(rf"\\lbrace{_E}", r"\\{", r"\lbrace 1,2\}", r"\{1,2\}"),
    _rule(rf"\\rbrace{_E}", r"\\}", r"\{1,2\rbrace", r"\{1,2\}"),
    _rule(rf"\\colon{_E}", ":", r"2\colon 3", "2:3"),
    _rule(rf"\\land{_E}", r"\\wedge ", r"p \land q", r"p\wedge q"),
    _rule(rf"\\lor{_E}", r"\\vee ", r"p \lor q", r"p\vee q"),
    _rule(rf"\\neg{_E}", r"\\lnot ", r"\neg p", r"\lnot p"),
    _rule(rf"\\implies{_E}", r"\\Rightarrow ", r"p \implies q", r"p\Rightarrow q"),
    _rule(r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![A-Za-z]))", "'", r"f^{\prime}(x)", "f'(x)"),
    _rule(r"(?<=[0-9])\s*\\cdot\s*(?=[A-Za-z]|\\pi|\\sqrt)", " ", r"2\cdot\pi", r"2\pi"),
    _rule(rf"\\(?:long)?rightarrow{_E}", r"\\to ", r"A \rightarrow B", r"A\to B"),
    _rule(rf"{_WORDY}\{{\s*\\degree\s*([CF])\s*\}}|(?:\^\s*\{{?\s*\\circ\s*\}}?|\\degree)\s*(?:{_WORDY}\{{\s*([CF])\s*\}}|([CF]){_E})", r"\\text{degree\1\2\3}", r"25^\circ\mathrm{C}", r"25\text{degreec}"),
    _rule(rf"\\(?:degrees?|textdegree){_E}", r"^{\\circ}", r"30\degree", r"30^{\circ}"),
    _rule(r"\\(?:Bbb\s*\{?)?([RNZQ])\}?(?![A-Za-z])", r"\\mathbb{\1}", r"\R", r"\mathbb{R}"),
    _rule(rf"\\lg{_E}", r"\\log_{10}", r"\lg 2", r"\log_{10}2"),
    _rule(r"(?<!\\)%", r"\\%", "50%", r"50\%"),
    _rule(r"(^|[(\[,])\s*\+(?=\\infty|[0-9])", r"\1", r"(1,+\infty)", r"(1,\infty)"),
    _rule(r"\^\s*-\s*([0-9]+|[a-z])", r"^{-\1}", "x^-1", "x^{-1}"),
    _rule(rf"\(\s*(?:\\?b?mod|{_WORDY}\{{\s*mod\s*\}})\s*([^()]+)\)", r"\\pmod{\1}", r"3\ (\mathrm{mod}\ 7)", r"3\pmod{7}"),
    _rule(r"^\(([0-9]+)\)(?=_)", r"\1", "(101)_2", "101_{2}"),
    _rule(r"_\{\(([0-9]+)\)\}", r"_{\1}", "1011_{(2)}", "1011_{2}"),
    _rule(r"(?<![0-9.])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])", r"\1\\frac{\2}{\3}", "3 1/2", r"3\frac{1}{2}"),
    # Words
    _rule(rf"(?<=[0-9}}])\s*(?:{_WORDY}\{{\s*min\.?\s*\}}|min(?![A-Za-z]))", r"\\text{minute}", r"20\text{ min}", r"20\text{minute}"),
    _rule(rf"{_WORDY}\{{\s*({_FUNCTIONS}|pi)\s*\}}|(?<![\\A-Za-z])({_FUNCTIONS}|sqrt|pi)(?![A-Za-z])", r"\\\1\2 ", r"\mathrm{sin}\,x", r"\sin x"),
    _rule(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", "sqrt(2)", r"\sqrt{2}"),
    _rule(r"(\\(?:log(?:_\{?\w+\}?)?|ln|sin|cos|tan))\s*\(([0-9]+|[a-z])\)(?![0-9A-Za-z\\(])", r"\1{\2}", r"\log_2(3)", r"\log_{2}3"),
    _rule(r"(?<![\\A-Za-z])inf(?:inity)?(?![A-Za-z])", r"\\infty ", "infinity", r"\infty"),
    _rule(rf"{_WORDY}\{{([^A-Za-z{{}}]*|\s*\([A-Za-z]\)\s*|\s*\\[A-Za-z]+\s*)\}}", r"\1 ", r"\text{(B)}", "(B)"),
    _rule(rf"{_WORDY}\{{(\s*-?[0-9][^{{}}]*)\}}", _numbers_and_words, r"\text{12 cm}", r"12\text{cm}"),
    _rule(rf"{_WORDY}\{{([^{{}}]*)\}}", r"\\text{\1}", r"\mathrm{km}", r"\text{km}"),
    _rule(rf"^(-?)\s*((?:US)?\\?\$|\\text\{{\s*(?:USD|EUR|GBP|Rs\.?)\s*\}}|USD|EUR|GBP|Rs\.?|\\pounds|\\euro|[{_SIGNS}])\s*(?=.)(.*)$", _money, r"\$5", r"5\text{dollar}"),
    _rule(rf"^(.*[0-9}}])(\s*[{_SIGNS}])()$", _money, "5 \u20ac", r"5\text{euro}"),
    _rule(r"(?<=[0-9])\s*(?:\\text\{)?\s*(?:[Rr]|rem\.?|remainder)\s*\}?\s*(?=[0-9])", r"\\text{remainder}", r"3\text{ R }2", r"3\text{remainder}2"),
    _rule(rf"(?<![0-9}})/] )(?<![0-9}})/])\\text\{{\s*([A-Za-z])\s*\}}|\\text\{{\s*(?![{_UNIT_LETTERS}]\s*\}})([A-Za-z])\s*\}}", r" \1\2 ", r"7\mathrm{x}", "7x"),
    _rule(rf"\\text\{{\s*({_NUMBERS})\s*\}}|^({_NUMBERS})$", lambda m: str(_NUMBERS.split("|").index((m[1] or m[2]).lower())), r"\text{seven}", "7"),
    _rule(r"^\\text\{\s*(?:exactly|only)\s*\}", "", r"\text{exactly }7", "7"),
    _rule(r"^(?:\\text\{)?\s*(?:[Tt]he\s+)?(?:[Ff]inal\s+|[Cc]orrect\s+)?[Aa]nswer(?:\s+is|\s*[:=])[\s:}]*", "", r"\text{The answer is } 7", "7"),
    _rule(r",?\s*\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}\s*,?|,?\s+(?:and|or)\s+(?![^{}]*\})", _connected, r"1 \text{ or } 2", "1,2"),
    _rule(r"(?<=[0-9])(?:\^?\{?\\text\{\s*(?:st|nd|rd|th)\s*\}\}?|(?:st|nd|rd|th)$)", "", r"5^{\text{th}}", "5"),
    _rule(rf"(?<=[0-9}}])\s*({_AFTER_NUMBER})|(?<=[0-9}}])\s+((?:[A-Za-z]+ )*[A-Za-z]{{3,}}(?:[ /][A-Za-z]+)*)", r"\\text{\1\2}", "12 cm", r"12\text{cm}"),
    _rule(r"^\\forall[^,]*,|^[a-z]\s*\\in\s*\\mathbb\{R\},(?=.*<|.*>|.*\\[lg]e|.*\\ne)", "", r"\forall x>0, f(x)=0", "f(x)=0"),
]  # fmt: skip


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
