"""Answers on which a verifier can hang, run out of memory or stack, or be fooled.

None of them is 12, except those in TRULY_12.
"""

from __future__ import annotations


def boxed(content: str) -> str:
    return rf"The answer is \boxed{{{content}}}."


def nested(opening: str, core: str, closing: str, depth: int) -> str:
    return opening * depth + core + closing * depth


HOSTILE: dict[str, str] = {
    # Numbers too large to write down
    "tower": boxed("9^{9^{9^{9}}}"),
    "tower without a box": "The answer is 9^9^9^9",
    "plain tower": "9**9**9**9",
    "tower equals": boxed("x = 9^{9^{9^{9}}} = 12"),
    "tower minus itself": boxed("12 + 9^{9^{9}} - 9^{9^{9}}"),
    "negative tower": boxed("2^{-9^{9^{9}}}"),
    "root of a tower": boxed(r"\sqrt[3]{7^{7^{7^{7}}}}"),
    "modulus of a tower": boxed(r"7^{7^{7^{7}}} \mod 13"),
    "factorial": boxed("(10^9)!"),
    "factorials of factorials": boxed("((9!)!)!"),
    "many factorials": boxed("9" + "!" * 200),
    "binomial": boxed(r"\binom{10^{10}}{10^{9}}"),
    "scientific": "The answer is 1e999999999",
    "scientific in a box": boxed("1e-999999999"),
    "product of powers": boxed(r" \cdot ".join(f"{n}^{{{n}^{{{n}}}}}" for n in range(7, 15))),
    # Length
    "a million digits": boxed("7" * 1_000_000),
    "a million digits without a box": "The answer is " + "7" * 1_000_000,
    "a million digits, then a fraction": boxed("7" * 1_000_000 + "/3"),
    "ten megabytes of blanks": " " * 10_000_000,
    "a long decimal": boxed("0." + "3" * 3_900),
    "a long sum": boxed("+".join(["1"] * 1_900)),
    "a long product of unknowns": boxed("(x+1)" * 600),
    "a long list": boxed(",".join(map(str, range(900)))),
    "many boxes": r"\boxed{1}" * 50_000,
    "many dollars": "$" * 3_999,
    "many formulas": "$1$ and " * 500,
    "many equalities": boxed("x=" * 1_500 + "7"),
    "many answers": "answer is " * 100_000,
    "digits and commas": "1,234," * 5_000,
    "operators": "3" + "+-*/^" * 700 + "3",
    # Depth
    "braces": boxed(nested("{", "12", "}", 500)),
    "unclosed braces": r"\boxed{" + "{" * 3_000,
    "boxes in boxes": nested(r"\boxed{", "13", "}", 400),
    "unclosed boxes": r"\boxed{" * 500,
    "parentheses": boxed(nested("(", "13", ")", 500)),
    "plain parentheses": "The answer is " + nested("(", "13", ")", 1_500),
    "fractions": boxed(nested(r"\frac{1}{", "13", "}", 300)),
    "roots": boxed(nested(r"\sqrt{", "13", "}", 400)),
    "powers": boxed(nested("2^{", "2", "}", 300)),
    "left and right": boxed(nested(r"\left(", "13", r"\right)", 300)),
    "minus signs": boxed("-" * 1_001 + "12"),
    # Analysis that does not end
    "integral": boxed(r"\int_0^{\infty} \frac{\sin(x^x)}{x^{\sin x}} dx"),
    "sum": boxed(r"\sum_{n=1}^{10^{12}} \frac{1}{n^{n!}}"),
    "product": boxed(r"\prod_{n=1}^{10^{10}} n"),
    "limit": boxed(r"\lim_{x \to 0} \frac{\sin(\tan(x^{1000}))}{x^{1000}}"),
    "power of a sum": boxed("(x+y+z+w)^{1000}"),
    "radicals": boxed("+".join(rf"\sqrt{{{n}}}" for n in range(2, 60))),
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
    "multiple": boxed("2x=12"),
    "another base": boxed("12_8"),
    "minus": "The answer is \N{MINUS SIGN}12",
    "minus apart": "The answer is - 12",
    "thousands of millions": "The answer is 12e9",
    "a last number": boxed("@ 12"),
    "an empty box after it": r"12 \boxed{}",
    "both": boxed("12, 13"),
    "not it": boxed(r"\text{not } 12"),
    "infinite": boxed(r"\frac{12}{0}"),
    "nan": boxed(r"\infty - \infty"),
}
TRULY_12: frozenset[str] = frozenset({"braces", "tower minus itself"})

# These hang like others, so only the long form of the test waits for them.
LIKE_OTHERS: frozenset[str] = frozenset(
    {
        "a million digits without a box",
        "a million digits, then a fraction",
        "limit",
        "radicals",
        "multiple",
        "thousands of millions",
        "tower without a box",
        "tower equals",
        "tower minus itself",
        "negative tower",
        "root of a tower",
        "modulus of a tower",
        "binomial",
        "scientific",
        "a long product of unknowns",
        "a long list",
        "many equalities",
        "fractions",
        "powers",
        "minus signs",
        "factorials of factorials",
        "many factorials",
        "scientific in a box",
        "product of powers",
        "braces",
        "left and right",
        "product",
        "sum",
        "power of a sum",
    }
)
