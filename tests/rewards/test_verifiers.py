"""Verdicts on pairs of text and reference answer, most of them found by experiment."""

import tomllib
from pathlib import Path

import pytest
import sympy
from math_verify import grader as math_verify_grader
from math_verify import parser as math_verify_parser
from sympy.abc import C, x, y

from mugrpo.config.rewards import ExactOptions, NumericOptions, RegexOptions
from mugrpo.disk.records import Status
from mugrpo.rewards.math.mathematics import Mathematics, _read_whole, apart
from mugrpo.rewards.math.notation import RULES, normal
from mugrpo.rewards.math.response import LONGEST_TEXT
from mugrpo.rewards.verdict import Verifier
from mugrpo.rewards.verifiers import exact, numeric, regex
from tests.cases import table

MATH = Mathematics()

HUGE = [  # (reference, text): too large to compute, so only what is written the same way is right
    ("12", r"\boxed{2^{10001}}", False),
    ("12", r"\boxed{x = 2^{10001} = 12}", False),
    ("2^{10001}", r"\boxed{2^{10001}}", True),
    ("2^{10002}", r"\boxed{4^{5001}}", False),
    ("2^{10000}", r"\boxed{4^{5000}}", True),
]


@table(("reference", "text", "right"), HUGE)
def test_huge_numbers_are_compared_as_written_and_not_computed(reference, text, right, monkeypatch):
    assert MATH(text, reference).right is right
    assert MATH(text, reference) == MATH(text, reference)


def test_only_the_end_of_a_text_is_read():
    assert MATH(r"\boxed{12}" + "." * LONGEST_TEXT, "12").status is Status.NO_ANSWER
    assert MATH("." * LONGEST_TEXT + r"\boxed{12}", "12").status is Status.RIGHT
    assert MATH(r"\boxed{7} or rather \boxed{ x = 12 }", "12").answer == "x = 12"


@table("reference", ["", "$", "$ $"])
def test_a_reference_that_cannot_be_read_is_an_error_and_not_a_verdict(reference):
    with pytest.raises(ValueError, match=r"read the reference"):
        MATH(r"\boxed{12}", reference)


@table(
    "reference",
    ["The answer is: 180.", "<think>4</think><answer>180</answer>", "**Final Answer:** 180"],
)
def test_a_reference_that_says_its_answer_is_read_as_a_response_is(reference):
    assert MATH(r"\boxed{180}", reference).right and MATH("#### 180", reference).right
    assert not MATH(r"\boxed{181}", reference).right


@table("swallowed", [MemoryError, RecursionError])
@table("place", [(math_verify_grader, "simplify"), (math_verify_parser, "parse_latex_cached")])
def test_an_error_that_math_verify_swallows_is_raised(place, swallowed, monkeypatch):
    """It says nothing about the answer. Nothing is left of it for the next one."""

    def fails(*_, **__):
        raise swallowed

    with monkeypatch.context() as patched:
        patched.setattr(*place, fails)
        _read_whole.cache_clear()
        with pytest.raises(swallowed):
            MATH(r"\boxed{\sin(2x)}", r"2\sin x\cos x")
    assert MATH(r"\boxed{\sin(2x)}", r"2\sin x\cos x").right


@table("raised", [TypeError, ValueError, ZeroDivisionError, NotImplementedError])
def test_an_answer_that_cannot_be_compared_is_wrong(raised, monkeypatch):
    def fails(*_, **__):
        raise raised

    monkeypatch.setattr("mugrpo.rewards.math.mathematics._loose", fails)
    assert MATH(r"\boxed{\sin(2x)}", r"2\sin x\cos x").status is Status.WRONG


EXACT = exact(ExactOptions())


def number(tolerance: float = 0.0) -> Verifier:
    return numeric(NumericOptions(tolerance=tolerance))


@table(
    ("verifier", "text", "reference", "status"),
    [
        (EXACT, " yes\n", "yes", "right"),
        (EXACT, "Yes", "yes", "wrong"),
        (EXACT, "yes, because", "yes", "wrong"),
        (EXACT, " \n", "yes", "no_answer"),
        (number(), "first 3, then 12.", "12", "right"),
        (number(), "12 and 13", "12", "wrong"),
        (number(), "\N{MINUS SIGN}12", "12", "wrong"),
        (number(), "$1,234.50", "1234.5", "right"),
        (number(), "1.2e3", "1200", "right"),
        (number(0.01), "101", "100", "right"),  # 1 <= 0.01 x 100
        (number(0.01), "101.001", "100", "wrong"),
        (number(0.1), "0.5", "0.4", "right"),  # 0.1 <= 0.1 x 1
        (number(0.1), "0.51", "0.4", "wrong"),
        (number(), "9007199254740993", "9007199254740992", "wrong"),  # the same as floats
        (number(1e9), "1e999999999999999999999", "12", "wrong"),
        (number(), "5 m", "5", "right"),
        (number(), r"\boxed{5 x}", "5", "wrong"),
        (number(), "version x12", "12", "no_answer"),
        (number(), "none", "12", "no_answer"),
    ],
)
def test_exact_and_numeric(verifier, text, reference, status):
    assert verifier(text, reference).status == status
    with pytest.raises(ValueError, match="'many' is not a number"):
        number()("12", "many")  # a reference must be one


@table(
    ("pattern", "text", "status", "answer"),
    [
        (r"<answer>(.*?)</answer>", "<answer>7</answer> <answer> 12 </answer>", "right", "12"),
        (r"<answer>(.*?)</answer>", "<answer>13</answer>", "wrong", "13"),
        (r"\d+", "7 or 12", "right", "12"),
        (r"(a)|b", "b", "no_answer", None),
        (r"\d+", "none", "no_answer", None),
    ],
)
def test_regex(pattern, text, status, answer):
    verdict = regex(RegexOptions(pattern=pattern))(text, "12")
    assert (verdict.status, verdict.answer) == (status, answer)


MATH = Mathematics()
SECTIONS = tomllib.loads((Path(__file__).parent / "verification.toml").read_text())["section"]
CASES = [
    (row["reference"], answer if section.get("texts") else rf"\boxed{{{answer}}}", right)
    for section in SECTIONS
    for row in section["rows"]
    for key, right in (("right", True), ("wrong", False))
    for answer in row.get(key, [])
]


@table(("reference", "text", "right"), CASES)
def test_verdicts(reference, text, right):
    assert MATH(text, reference).right is right


@table("reference", sorted({reference for reference, _, _ in CASES}))
def test_each_reference_is_an_answer_to_itself(reference):
    text = reference if r"\boxed" in reference else rf"\boxed{{{reference}}}"
    assert MATH(text, reference).right


@table("rule", RULES)
def test_each_rule_rewrites_its_example_and_no_other_rule_does(rule, monkeypatch):
    assert normal(rule.written) == normal(rule.becomes) == rule.becomes
    others = [other for other in RULES if other is not rule]
    monkeypatch.setattr("mugrpo.rewards.math.notation.RULES", others)
    assert normal(rule.written) != rule.becomes


Y = sympy.Function("y")(x)
ALIKE = [
    (x**2 - 1, (x - 1) * (x + 1)),
    (sympy.Eq(y, 2 * x), sympy.Eq(3 * y - 6 * x, 0)),
    (sympy.Eq(y, C * sympy.exp(x)), C * sympy.exp(x)),  # the right side stands for an equation
    (sympy.Eq(x * (x - 1), 0), sympy.Eq(x, 0)),  # each solution of x=0 solves it: no proof
    (sympy.log(x - 2) - sympy.log(x - 3), sympy.log((x - 2) / (x - 3))),  # not real at the points
    (sympy.Rational(1, 3), sympy.Float("0.333333")),  # as much as math-verify rounds away
    (sympy.Sum(1 / x**2, (x, 1, sympy.oo)), sympy.pi**2 / 6),
    (1 / sympy.Symbol("z", zero=True), x),  # no number at all
]
APART = [
    (x**2 + 1, x**2 + 2),
    (sympy.Eq(y, 2 * x), sympy.Eq(y, 2 * x + 1)),
    (sympy.Eq(y, C * sympy.exp(x)), sympy.Eq(sympy.sin(y), C * sympy.cos(x))),
    (sympy.Eq(Y, C * x), sympy.Eq(Y, C * x**2)),
    (sympy.Eq(y, 3 * x), 2 * x),
    (sympy.sqrt(2 + sympy.sqrt(3)), sympy.sqrt(2 + sympy.sqrt(5))),
    (2 + 3 * sympy.I, 2 - 3 * sympy.I),
]


@table(
    ("one", "other", "differ"),
    [*((*pair, False) for pair in ALIKE), *((*pair, True) for pair in APART)],
)
def test_values_are_apart_at_some_point_if_they_differ(one, other, differ):
    assert apart(one, other) == apart(other, one) == differ
