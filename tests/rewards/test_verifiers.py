"""Verdicts on pairs of text and reference answer, most of them found by experiment."""

from __future__ import annotations

import re

import pytest
from math_verify import grader as math_verify_grader

from mugrpo.disk.records import Status
from mugrpo.rewards.mathematics import Mathematics
from mugrpo.rewards.response import LONGEST_TEXT
from mugrpo.rewards.response import find
from mugrpo.rewards.verifiers import exact, matched, numeric
from tests.rewards.hostile import HOSTILE

STRICT, LIBRARY = Mathematics(strict=True), Mathematics(strict=False)

LOOSE = [  # (reference, text): math-verify says right, strictness does not
    ("12", r"\boxed{x=7=12}"),
    ("12", r"\boxed{12=13=12}"),
    ("12", r"$x = 7 = 12$"),
    ("12", r"\boxed{7=12}"),
    ("12", r"\boxed{2x=12}"),
    ("12", r"\boxed{-x=12}"),
    ("12", r"\boxed{x^2=12}"),
    ("12", r"\boxed{\emptyset = 12}"),
    ("x=12", r"\boxed{x=7=12}"),
    ("12", r"12 \boxed{}"),
    ("12", r"\boxed{\approx 12}"),
    ("12", "The answer is - 12"),
    ("12", "answer: 12e5"),
    ("12", r"\boxed{12_8}"),
    ("12_8", r"\boxed{12_9}"),
    ("12", r"\boxed{13}. The final answer is 12. I hope"),
    ("6", r"\boxed{\cancel{5} 6}"),
    ("3", r"\boxed{1 2}"),
    ("5", r"\boxed{\int_0^5 1 dx}"),
    ("(1,2)", r"\boxed{\{1,2\}}"),
    ("(1,2)", r"\boxed{1,2}"),
    ("(1,2)", r"\boxed{x=1,y=2}"),
    (r"\{1,2\}", r"\boxed{(1,2)}"),
    (r"\{1,2\}", r"\boxed{(2,1)}"),
    (r"\{1,2\}", r"\boxed{x=1,y=2}"),
    (r"\{1,2\}", r"\boxed{3=1, 4=2}"),
    ("(1,2,3)", r"\boxed{1,2,3}"),
    (r"\{(1,2),(3,4)\}", r"\boxed{\{1,2\},\{3,4\}}"),
    ("0.0000001", r"\boxed{0.0000002}"),
    (r"\frac{\sqrt{2}}{10^{20}}", r"\boxed{\frac{\sqrt{3}}{10^{20}}}"),
    ("east", r"\boxed{seat}"),
    ("cat", r"\boxed{act}"),
    ("2m", r"\boxed{2}"),
    ("(0.0000001, 1)", r"\boxed{(0.0000002, 1)}"),
    (r"12 \text{ cm}", r"\boxed{12 \text{ m}}"),
    (r"12\text{ cm}^2", r"\boxed{12\text{ cm}}"),
    ("12 cm", r"\boxed{12 m}"),
    ("5 hours", r"\boxed{5 minutes}"),
    (r"60 \text{ miles per hour}", r"\boxed{60 \text{ km/h}}"),
    (r"30^\circ", r"\boxed{30\text{ minutes}}"),
    ("x^2+1=0", r"\boxed{x^2+4=0}"),
    ("x^2+1=0", r"\boxed{0=0}"),
    ("y=2x+3", r"\boxed{y=7=2x+3}"),
]

RIGHT = [  # (reference, text): strictness says right
    ("12", "12"),
    ("12", "12 apples"),
    ("12", "The answer is **12**."),
    ("12", "3 + 9 = 12."),
    ("12", "$12$"),
    ("12", r"\boxed{12}"),
    ("12", r"\boxed{12.}"),
    ("12", r"\boxed{12.0}"),
    ("12", r"\boxed{x=12}"),
    ("12", r"\boxed{x=3+9=12}"),
    ("12", r"\boxed{3+9=12}"),
    ("12", r"\boxed{f(2)=12}"),
    ("12", r"\boxed{a+b=12}"),
    ("12", r"\boxed{|AB| = 12}"),
    ("12", r"\boxed{speed = 12}"),
    ("12", r"\boxed{\text{Total cost} = 12}"),
    ("12", r"\boxed{12 \text{ cm}^2}"),
    ("12", r"\boxed{12^\circ}"),
    ("12", r"\boxed{\$12}"),
    ("12", r"\boxed{12\%}"),
    ("12", r"\boxed{\sqrt{144}}"),
    ("12", r"\boxed{13} no, \boxed{12}"),
    ("12", r"\fbox{12}"),
    (r"the sum is $\boxed{12}$", "12"),
    ("-3", "The answer is \N{MINUS SIGN}3"),
    ("1234", r"\boxed{1,234}"),
    ("1,234", "The answer is 1234"),
    ("1000", r"\boxed{1\,000}"),
    ("1000", r"\boxed{1e3}"),
    ("12_8", r"\boxed{12_{8}}"),
    ("12_8", r"\boxed{12}"),
    (r"\frac{1}{2}", "The answer is 1/2"),
    ("0.5", r"\boxed{50\%}"),
    (r"50\%", "0.5"),
    (r"\frac{1}{3}", "0.333333"),
    (r"3\sqrt{2}", r"\boxed{\sqrt{18} \text{ units}}"),
    ("(1,2)", r"\boxed{\left(1, 2\right)}"),
    ("(1,2)", r"\boxed{(x,y)=(1,2)}"),
    ("(x,y)=(1,2)", r"\boxed{(x, y) = (1, 2)}"),
    ("1, -2", r"\boxed{x=-2 \text{ or } x=1}"),
    ("1, -2", r"\boxed{x_1=1, x_2=-2}"),
    ("1, -2", r"$x=1$ or $x=-2$"),
    ("x>2", r"\boxed{(2,\infty)}"),
    ("1<x<2", r"\boxed{x \in (1,2)}"),
    ("y=2x+3", r"\boxed{y-2x=3}"),
    ("y=2x+3", r"\boxed{2x+3=y}"),
    ("x+1", r"\boxed{f(x) = 1+x}"),
    (r"\text{east}", r"\boxed{East}"),
    ("xy", r"\boxed{yx}"),
]

HUGE = [  # (reference, text): too large to compute, so only what is written the same way is right
    ("12", r"\boxed{9^{9^{9^{9}}}}", False),
    ("12", "9^9^9^9", False),
    ("12", "1000000!", False),
    ("12", r"\boxed{1000000!}", False),
    ("12", r"\boxed{x = 9^{9^{9}} = 12}", False),
    (r"2^{2^{2016}}", r"\boxed{2^{2^{2016}}}", True),
    (r"2^{2^{2016}}", r"\boxed{N = 2^{2^{2016}}}", False),
    (r"2^{2^{2016}}", r"\boxed{2^{2^{2017}}}", False),
    ("2^{2016}", r"\boxed{4^{1008}}", True),
    ("20!", r"\boxed{2432902008176640000}", True),
    (r"\binom{50}{25}", r"\boxed{126410606437752}", True),
]

WRONG = [
    ("12", "13"),
    ("12", r"\boxed{-12}"),
    ("12", r"\boxed{\pm 12}"),
    ("(1,2)", r"\boxed{(2,1)}"),
]
WRONG += [("12", r"\boxed{12, 13}"), ("12", r"\boxed{\frac{12}{0}}"), ("[1,2]", r"\boxed{(1,2)}")]


@pytest.mark.parametrize(("reference", "text"), LOOSE)
def test_strictness_takes_back_what_math_verify_matches_loosely(reference, text):
    assert LIBRARY(text, reference).status is Status.RIGHT
    assert STRICT(text, reference).status in (Status.WRONG, Status.NO_ANSWER)


@pytest.mark.parametrize(("reference", "text"), RIGHT)
def test_ordinary_ways_to_write_an_answer_are_right(reference, text):
    assert STRICT(text, reference).status is Status.RIGHT


@pytest.mark.parametrize(("reference", "text"), WRONG)
def test_another_answer_is_wrong(reference, text):
    assert STRICT(text, reference).status is LIBRARY(text, reference).status is Status.WRONG


@pytest.mark.parametrize(("reference", "text", "right"), HUGE)
def test_huge_numbers_are_compared_as_written_and_not_computed(reference, text, right, monkeypatch):
    assert STRICT(text, reference).right is right
    assert STRICT(text, reference) == STRICT(text, reference)


BOXES = [  # (reference, text, verdict)
    ("1, 2", r"\boxed{1}, \boxed{2}", True),
    ("1, 2", r"$\boxed{2}$ and $\boxed{1}$", True),  # a list without order
    ("2", r"\boxed{1}, \boxed{2}", False),
    ("2", r"\boxed{1} or \boxed{2}", False),
    ("2", r"\boxed{1} is too small; it is \boxed{2}", True),
    ("2", r"\boxed{2}, \boxed{2}", True),
    ("2", r"\boxed{x = \boxed{2}}", True),
    (r"\boxed{1} and \boxed{2}", r"\boxed{2}", False),
    (r"\boxed{1} and \boxed{2}", r"\boxed{1, 2}", True),
    (r"\boxed{1} and \boxed{2}", r"\boxed{1}, so that \boxed{2}", False),
    (r"x is \boxed{1}, y is \boxed{2}", r"\boxed{2}", False),
    (r"x is \boxed{1}, y is \boxed{2}", r"\boxed{1}", False),
    (r"x is \boxed{1}, y is \boxed{2}", r"\boxed{1}, \boxed{2}", True),
    (r"x is \boxed{1}, y is \boxed{2}", r"x is \boxed{1} while y is \boxed{2}", True),
    (r"x is \boxed{1}, y is \boxed{2}", r"\boxed{7} no: x is \boxed{1}; y is \boxed{2}", True),
    (r"x is \boxed{1}, y is \boxed{2}", r"x is \boxed{2}, y is \boxed{1}", False),
    (r"x is \boxed{1}, y is \boxed{2}", r"\boxed{1, 2}", True),
    (r"x is \boxed{1}, y is \boxed{2}", r"\boxed{2, 1}", False),
    (r"x is \boxed{1}, y is \boxed{2}", r"\boxed{1, 2, 3}", False),
    (r"x is \boxed{1}, y is \boxed{2}", "1 and 2", False),
]


@pytest.mark.parametrize(("reference", "text", "right"), BOXES)
def test_all_boxes_of_a_reference_are_required(reference, text, right):
    assert STRICT(text, reference).right is right


# Each table of docs/verification.md, with its counterexamples.
WORDS = [
    ("cat", r"\boxed{\text{Cat}}", True),
    ("cat", r"\boxed{c \cdot a \cdot t}", False),
    ("cat", r"\boxed{cats}", False),
    ("abc", r"\boxed{c a b}", False),
    ("cat, dog", r"\boxed{cat, dog}", True),
    ("cat, dog", r"\boxed{act, god}", False),
    (r"\text{no}", r"\boxed{on}", False),
    (r"\text{(C)}", r"\boxed{C}", True),
    (r"\text{(C)}", r"\boxed{D}", False),
    (r"\text{two words}", r"\boxed{\text{two words}}", True),
    ("xy", r"\boxed{yx}", True),
    (r"\frac{abc}{2}", r"\boxed{\frac{1}{2}abc}", True),
]
UNITS = [
    ("12", r"\boxed{12 \text{ cm}}", True),
    (r"12 \text{ cm}", r"\boxed{12}", True),
    (r"12 \text{ cm}", r"\boxed{12\,\mathrm{cm}}", True),
    (r"12 \text{ cm}", r"\boxed{12 \text{ centimeters}}", True),
    (r"12 \text{ cm}^2", r"\boxed{12 \text{ square centimeters}}", True),
    (r"9.8 \text{ m/s}^2", r"\boxed{9.8\ \mathrm{m}/\mathrm{s}^2}", True),
    (r"1 \text{ m}", r"\boxed{1}", True),
    (r"1 \text{ m}", r"\boxed{100 \text{ cm}}", False),  # units are not converted
    (r"5 \text{ hours}", "The answer is 5 minutes.", False),
    (r"5 \text{ hours}", "It takes $5$ hours.", True),
    (r"30^\circ", r"\boxed{30 \text{ degrees}}", True),
    (r"30^\circ", r"\boxed{30}", True),
    (r"\$36", r"\boxed{36 \text{ dollars}}", True),
    (r"\$36", r"\boxed{36 \text{ cents}}", False),
    (r"\$36", "$36", True),
    (r"\$36", r"\boxed{63}", False),
    (r"\$18.90", r"\boxed{18.9}", True),
    (r"\$32,\!348", r"\boxed{\$32,348}", True),
    (r"\$32,\!348", r"\boxed{32}", False),
    ("2m", r"\boxed{2m}", True),
]
PERCENT = [
    (r"50\%", r"\boxed{50\%}", True),
    (r"50\%", r"\boxed{50 \text{ percent}}", True),
    (r"50\%", r"\boxed{50}", True),
    (r"50\%", r"\boxed{\frac{1}{2}}", True),
    (r"50\%", r"\boxed{0.5\%}", False),
    (r"50\%", r"\boxed{5000}", False),
    (r"62.5\%", r"\boxed{62.5}", True),
    (r"62.5\%", "The answer is 62.5%.", True),
    ("0.5", r"\boxed{50\%}", True),
    ("0.5", r"\boxed{0.5\%}", False),
    (r"0.5\%", r"\boxed{0.5}", False),
    (r"0.5\%", r"\boxed{0.005}", True),
    (r"\frac{1}{2}\%", r"\boxed{0.5\%}", True),
    ("50", r"\boxed{50\%}", True),
    ("50", r"\boxed{0.5}", False),
    (r"50\%", r"\boxed{50 \text{ cm}}", False),
]
INTERVALS = [
    ("[1,2)", r"\boxed{[1,2)}", True),
    ("[1,2)", r"\boxed{(1,2]}", False),
    ("[1,2)", r"\boxed{[1,2]}", False),
    ("[1,2)", r"\boxed{(1,2)}", False),
    ("[1,2)", r"\boxed{[1,2[}", True),
    ("(1,2)", r"\boxed{]1,2[}", True),
    ("(1,2)", r"\boxed{]1,2]}", False),
    ("[0.5, 1.5)", r"\boxed{[\frac12, \frac32)}", True),
    (r"(-\infty,\frac12)\cup(1,\infty)", r"\boxed{(-\infty,0.5)\cup(1,\infty)}", True),
    ("(0.5, 1.5)", "The answer is (0.5, 1.5).", True),
    ("[0.5, 1.5]", "[0.5, 1.5]", True),
    ("1.5", "The answer is (0.5, 1.5).", False),
    ("[1,2]", r"\boxed{1 \le x \le 2}", True),
    ("[1,2]", r"\boxed{x \in [1,2]}", True),
    ("[1,2)", r"\boxed{1 \le x < 2}", True),
    ("(1,2)", r"\boxed{1 < x < 2}", True),
    ("(1,2)", r"\boxed{1 \le x < 2}", False),
    ("(1,2)", r"\boxed{x^2-3x+2<0}", False),  # the problem, not its solution
    (r"(-\infty, 2]", r"\boxed{x \le 2}", True),
    (r"(-\infty, 2]", r"\boxed{2x \le 4}", False),
    (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x<-1 \text{ or } x>1}", True),
    (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x<-1 \text{ or } y>1}", False),
    (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x<-1 \text{ or } x\ge 1}", False),
]
UNICODE = [
    (r"\frac{1}{2}", r"\boxed{½}", True),
    (r"\frac{1}{2}", "The answer is ½.", True),
    (r"\frac{1}{2}", "The answer is ½ + 1.", False),
    (r"\frac{3}{2}", "The answer is ½ + 1.", True),
    ("3.5", r"\boxed{3½}", True),
    (r"\sqrt{2}", r"\boxed{√2}", True),
    (r"\sqrt{2}", "The answer is √2", True),
    (r"\sqrt{2}", "The answer is √2 + 1", False),
    (r"1+\sqrt{2}", "The answer is √2 + 1", True),
    (r"3\sqrt{10}", r"\boxed{3√10}", True),
    (r"\sqrt{x+1}", r"\boxed{√(x+1)}", True),
    (r"\sqrt[3]{2}", r"\boxed{∛2}", True),
    ("x^2", r"\boxed{x²}", True),
    ("x^{-12}", r"\boxed{x⁻¹²}", True),
    ("x^2", r"\boxed{x2}", False),
    ("12_8", r"\boxed{12₈}", True),
    ("-3", r"\boxed{–3}", True),  # noqa: RUF001
    ("-3", "The answer is –3", True),  # noqa: RUF001
    ("3", "The answer is –3", False),  # noqa: RUF001
    ("-2", "The answer is 3–5", False),  # a range  # noqa: RUF001
    ("-2", r"\boxed{3 – 5}", True),  # noqa: RUF001
    (r"\infty", r"\boxed{∞}", True),
    (r"1 \pm \sqrt{2}", r"\boxed{1 ± √2}", True),
    (r"2\pi", r"\boxed{2π}", True),
    ("30", r"\boxed{30°}", True),
    ("6", r"\boxed{2×3}", True),  # noqa: RUF001
    ("[1,2]", r"\boxed{1 ≤ x ≤ 2}", True),
]


@pytest.mark.parametrize(
    ("reference", "text", "right"), [*WORDS, *UNITS, *PERCENT, *INTERVALS, *UNICODE]
)
def test_words_units_percent_intervals_and_unicode_are_compared_by_rule(reference, text, right):
    assert STRICT(text, reference).right is right


def test_several_boxes_are_a_set_to_math_verify():
    text = r"\boxed{1}, \boxed{2}"
    assert (LIBRARY(text, "1, 2").right, LIBRARY(text, "2").right) == (True, False)


@pytest.mark.parametrize("verifier", [STRICT, LIBRARY])
def test_no_answer_is_not_a_wrong_answer(verifier):
    assert verifier("I do not know.", "12").status is Status.NO_ANSWER
    assert verifier("", "12").status is Status.NO_ANSWER


def test_the_verdict_has_the_answer_that_was_read():
    assert STRICT(r"\boxed{7} or rather \boxed{ x = 12 }", "12").answer == "x = 12"


def test_only_the_end_of_a_text_is_read():
    assert STRICT(r"\boxed{12}" + " " * LONGEST_TEXT, "12").status is Status.NO_ANSWER
    assert STRICT(" " * LONGEST_TEXT + r"\boxed{12}", "12").status is Status.RIGHT


@pytest.mark.parametrize("verifier", [STRICT, LIBRARY])
@pytest.mark.parametrize("reference", ["", "$", "$ $"])
def test_a_reference_that_cannot_be_read_is_an_error_and_not_a_verdict(reference, verifier):
    with pytest.raises(ValueError, match="cannot read the reference"):
        verifier(r"\boxed{12}", reference)


def test_running_out_of_stack_while_parsing_is_an_error_and_not_a_verdict():
    with pytest.raises(RecursionError):
        STRICT(HOSTILE["powers"], "12")


@pytest.mark.parametrize("swallowed", [MemoryError, RecursionError])
def test_an_error_that_math_verify_swallows_while_comparing_is_raised(swallowed, monkeypatch):
    def fails(*_, **__):
        raise swallowed

    monkeypatch.setattr(math_verify_grader, "simplify", fails)
    with pytest.raises(swallowed):
        STRICT(r"\boxed{x+2}", "x+1")


def test_a_comparison_that_sympy_cannot_do_is_wrong(monkeypatch):
    def fails(*_, **__):
        raise NotImplementedError

    monkeypatch.setattr(math_verify_grader, "simplify", fails)
    assert STRICT(r"\boxed{x+2}", "x+1").status is Status.WRONG


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        (r"\boxed{1}\boxed{12}", [["1", "12"]]),
        (r"\boxed{1}, $\fbox{2}$ or \text{ or } \boxed{3}", [["1", "2", "3"]]),
        (r"\boxed{1} then \boxed{2}", [["1"], ["2"]]),
        (r"\boxed{\frac{1}{2}} and so on", [[r"\frac{1}{2}"]]),
        (r"\boxed{x=\boxed{2}}", [["x={2}"]]),
        (r"\boxed{1} \boxed{2", [["1"]]),
        (r"\boxed {3}", [["3"]]),
        (r"\boxed{}", [[""]]),
        ("none", []),
    ],
)
def test_boxes_come_in_groups(text, groups):
    assert (find(text) or []) == groups


@pytest.mark.parametrize(
    ("text", "reference", "status"),
    [
        (" yes\n", "yes", "right"),
        ("Yes", "yes", "wrong"),
        ("yes, because", "yes", "wrong"),
        (" \n", "yes", "no_answer"),
    ],
)
def test_exact(text, reference, status):
    assert exact(text, reference, ignore_case=False).status == status


def test_exact_may_ignore_case():
    assert exact("STRASSE", "straße", ignore_case=True).right


@pytest.mark.parametrize(
    ("text", "reference", "tolerance", "status"),
    [
        ("first 3, then 12.", "12", 0.0, "right"),
        ("12 and 13", "12", 0.0, "wrong"),
        ("\N{MINUS SIGN}12", "12", 0.0, "wrong"),
        ("$1,234.50", "1234.5", 0.0, "right"),
        ("1.2e3", "1200", 0.0, "right"),
        ("101", "100", 0.01, "right"),  # 1 <= 0.01 x 100
        ("101.001", "100", 0.01, "wrong"),
        ("0.5", "0.4", 0.1, "right"),  # 0.1 <= 0.1 x 1
        ("0.51", "0.4", 0.1, "wrong"),
        ("9007199254740993", "9007199254740992", 0.0, "wrong"),  # the same as floats
        ("1e999999999999999999999", "12", 1e9, "wrong"),
        ("version x12", "12", 0.0, "no_answer"),
        ("none", "12", 0.0, "no_answer"),
    ],
)
def test_numeric(text, reference, tolerance, status):
    assert numeric(text, reference, tolerance=tolerance).status == status


def test_numeric_needs_a_number_as_reference():
    with pytest.raises(ValueError, match="'twelve' is not a number"):
        numeric("12", "twelve", tolerance=0.0)


@pytest.mark.parametrize(
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
    verdict = matched(text, "12", pattern=re.compile(pattern))
    assert (verdict.status, verdict.answer) == (status, answer)
