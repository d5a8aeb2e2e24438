"""Odd answers, on which a verifier could be fooled or fail. None of them is 12.

None is heavy: tests that need a judge that hangs or fills the memory have stand-ins, which say so
(misbehaving.py).
"""

from __future__ import annotations

from mugrpo.rewards.math.response import LONGEST_ANSWER, LONGEST_TEXT


def boxed(content: str) -> str:
    return rf"The answer is \boxed{{{content}}}."


HOSTILE: dict[str, str] = {
    # Larger and longer than what is computed and read, by one
    "a large power": boxed("2^{10001}"),
    "a large factorial": boxed("10001!"),
    "a long number": boxed("7" * (LONGEST_ANSWER + 1)),
    "a long text": " " * (LONGEST_TEXT + 1),
    "many boxes": r"\boxed{1}" * (LONGEST_TEXT // 9 + 1),
    "many dollars": "$" * (LONGEST_ANSWER + 1),
    "many answers": "answer is " * (LONGEST_ANSWER // 10 + 1),
    "digits and commas": "1,234," * (LONGEST_ANSWER // 6 + 1),
    "operators": "3" + "+-*/^" * 10 + "3",
    "unclosed braces": r"\boxed{" + "{" * 20,
    "boxes in boxes": boxed(r"\boxed{\boxed{13}}"),
    # Characters
    "control characters": "".join(map(chr, range(32))) + boxed("\x00\x1b[2J13"),
    "lone surrogates": boxed("\ud800\udfff13") + "\udc00",
    "a lone surrogate for a sign": "The answer is \ud83d13",
    "right to left": "The answer is \u202e21\u202c.",
    "no characters to see": "\u200b" * 30 + "\ufeff",
    "combining marks": boxed("1" + "\u0301" * LONGEST_ANSWER + "3"),
    "digits of another script": boxed("१३"),
    "full-width digits": boxed("１３"),  # noqa: RUF001
    "nothing": "",
    "an empty box": boxed(""),
    "a box of blanks": boxed("   "),
    # Python and LaTeX that would do something
    "import": boxed('__import__("os").getcwd()'),
    "expression of Python": "The answer is 1.__class__",
    "input of a file": boxed(r"\input{/etc/passwd}"),
    "a definition": r"\def\x{12}" + boxed(r"\x"),
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
