r"""The rules that bring an answer into one notation: a rule a line, with an example.

docs/verification.md shows this table, and a test applies each rule to its example. A rule may
change how an answer looks, never its value.
"""

from __future__ import annotations

import math
import re
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


def _words(text: str) -> list[str]:
    return text.split()


_CURRENCIES = {"\u20ac": "euro", "\u00a3": "pound", "\u00a5": "yen", "\u20b9": "rupee"}
_SIGNS = "".join(_CURRENCIES)
_CURRENCIES |= {"EUR": "euro", "euro": "euro", "GBP": "pound", "pounds": "pound", "Rs": "rupee"}
_NUMBERS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
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
    _rule(rf"\\text\{{\s*({'|'.join(_NUMBERS)})\s*\}}|^({'|'.join(_NUMBERS)})$", lambda m: str(_NUMBERS.index((m[1] or m[2]).lower())), r"\text{seven}", "7"),
    _rule(r"^\\text\{\s*(?:exactly|only)\s*\}", "", r"\text{exactly }7", "7"),
    _rule(r"^(?:\\text\{)?\s*(?:[Tt]he\s+)?(?:[Ff]inal\s+|[Cc]orrect\s+)?[Aa]nswer(?:\s+is|\s*[:=])[\s:}]*", "", r"\text{The answer is } 7", "7"),
    _rule(r",?\s*\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}\s*,?|,?\s+(?:and|or)\s+(?![^{}]*\})", _connected, r"1 \text{ or } 2", "1,2"),
    _rule(r"(?<=[0-9])(?:\^?\{?\\text\{\s*(?:st|nd|rd|th)\s*\}\}?|(?:st|nd|rd|th)$)", "", r"5^{\text{th}}", "5"),
    _rule(rf"(?<=[0-9}}])\s*({_AFTER_NUMBER})|(?<=[0-9}}])\s+((?:[A-Za-z]+ )*[A-Za-z]{{3,}}(?:[ /][A-Za-z]+)*)", r"\\text{\1\2}", "12 cm", r"12\text{cm}"),
    _rule(r"^\\forall[^,]*,|^[a-z]\s*\\in\s*\\mathbb\{R\},(?=.*<|.*>|.*\\[lg]e|.*\\ne)", "", r"\forall x>0, f(x)=0", "f(x)=0"),
]  # fmt: skip
