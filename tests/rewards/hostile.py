"""Answers on which a verifier can hang, run out of memory or stack, or be fooled.

None of them is 12.
"""

from __future__ import annotations


def boxed(content: str) -> str:
    return rf"The answer is \boxed{{{content}}}."


def nested(opening: str, core: str, closing: str, depth: int) -> str:
    return opening * depth + core + closing * depth


HOSTILE: dict[str, str] = {
    # Numbers too large to write down
    "tower": boxed("9^{9^{9^{9}}}"),
    "plain tower": "9**9**9**9",
    "factorial": boxed("(10^9)!"),
    # Length
    "a million digits": boxed("7" * 1_000_000),
    "ten megabytes of blanks": " " * 10_000_000,
    "a long decimal": boxed("0." + "3" * 3_900),
    "a long sum": boxed("+".join(["1"] * 1_900)),
    "many boxes": r"\boxed{1}" * 50_000,
    "many dollars": "$" * 3_999,
    "many formulas": "$1$ and " * 500,
    "many answers": "answer is " * 100_000,
    "digits and commas": "1,234," * 5_000,
    "operators": "3" + "+-*/^" * 700 + "3",
    # Depth
    "unclosed braces": r"\boxed{" + "{" * 3_000,
    "boxes in boxes": nested(r"\boxed{", "13", "}", 400),
    "unclosed boxes": r"\boxed{" * 500,
    "parentheses": boxed(nested("(", "13", ")", 500)),
    "plain parentheses": "The answer is " + nested("(", "13", ")", 1_500),
    "roots": boxed(nested(r"\sqrt{", "13", "}", 400)),
    # Analysis that does not end
    "integral": boxed(r"\int_0^{\infty} \frac{\sin(x^x)}{x^{\sin x}} dx"),
    "a matrix's power": boxed(
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}^{10^{9}}",
    ),
    "a large matrix": boxed(
        r"\begin{pmatrix}" + r"\\".join(["1 & 2 & 3 & 4 & 5 & 6"] * 80) + r"\end{pmatrix}"
    ),
    # Characters
    "control characters": "".join(map(chr, range(32))) + boxed("\x00\x1b[2J13"),
    "lone surrogates": boxed("\ud800\udfff13") + "\udc00",
    "a lone surrogate for a sign": "The answer is \ud83d13",
    "right to left": "The answer is \u202e21\u202c.",
    "no characters to see": "\u200b" * 3_000 + "\ufeff",
    "combining marks": boxed("1" + "\u0301" * 3_000 + "3"),
    "digits of another script": boxed("१३"),
    "full-width digits": boxed("１３"),  # noqa: RUF001
    "nothing": "",
    "an empty box": boxed(""),
    "a box of blanks": boxed("   "),
    # Python and LaTeX that would do something
    "import": boxed('__import__("os").abort()'),
    "expression of Python": "The answer is 1.__class__",
    "input of a file": boxed(r"\input{/etc/passwd}"),
    "a definition": r"\def\x{\x\x}" + boxed(r"\x"),
    "a format": "{0.__class__}%s%n%x",
    "json": '{"$mugrpo": ["bytes", "MTI="]}',
    # Loose matches for 12
    "chain": boxed("x=7=12"),
    "equation": boxed("7=12"),
    "another base": boxed("12_8"),
    "minus": "The answer is \N{MINUS SIGN}12",
    "minus apart": "The answer is - 12",
    "a last number": boxed("@ 12"),
    "an empty box after it": r"12 \boxed{}",
    "both": boxed("12, 13"),
    "not it": boxed(r"\text{not } 12"),
    "infinite": boxed(r"\frac{12}{0}"),
    "nan": boxed(r"\infty - \infty"),
}
