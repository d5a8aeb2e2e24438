"""Verdicts of `plain`, each judged by hand first, and that no text costs it much."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from mugrpo.disk.records import Status
from mugrpo.rewards import forms
from mugrpo.rewards import plain as module
from mugrpo.rewards.mathematics import Mathematics
from mugrpo.rewards.plain import plain
from mugrpo.rewards.response import LONGEST_ANSWER, LONGEST_TEXT
from tests.rewards.hostile import HOSTILE, TRULY_12

MATH = Mathematics(strict=True)

# What is read: (text, the answer in it or None)
READ = [
    # boxes
    (r"\boxed{12}", "12"),
    (r"First \boxed{1}, then \boxed{2}.", "2"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{x = \boxed{5}}", "5"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\left\{1\right.}", r"\left\{1\right."),
    (r"\fbox{3}", "3"),
    (r"\boxed 7$ is it", "7"),
    (r"$\boxed{7}$. The answer is 8.", "7"),
    (r"It is 12 \boxed{}", None),
    (r"It is 12, so \boxed{12", None),
    # marks
    ("The answer is 12.", "12"),
    ("The answer is 1. No, the answer is 2.", "2"),
    ("The answer is 12. I hope it is correct, as 3 is prime.", "12"),
    ("Answer: 7", "7"),
    ("**Answer:** 7", "7"),
    ("**Final Answer**: 7", "7"),
    ("answer is: $x = 5$ since 2 < 3", "x = 5"),
    ("The answer is $18 per day. She saves $5", "$18 per day"),
    ("The answer is:\n\n\\[\n42\n\\]\nas 1 < 2.", "42"),
    ("The answer is $$\\frac{3}{4}$$", r"\frac{3}{4}"),
    (r"The answer is \(2\pi\).", r"2\pi"),
    ("3 + 4 = 7\n#### 7", "7"),
    ("#### 7\n\nAnother problem: 9", "7"),
    ("The answer is 3.5.", "3.5"),
    ("The answer is 42, because 6 x 7 is 42", "42"),
    ("The answer is (C)", "(C)"),
    ("The answer is east.", "east"),
    ("The answer is", None),
    # the beginning of an explanation is no answer
    ("Answer: To find the sum we add 3 and 9. It is 12", "12"),
    # the last number
    ("3 + 9 = 12", "12"),
    ("She pays $1,234.50.", "$1,234.50"),
    ("So it falls to -7 degrees", "-7"),
    ("So it falls to \N{MINUS SIGN}7 degrees", "-7"),
    ("About 1/2 of it", "1/2"),
    (r"So $x = \frac{1}{2}$.", r"\frac{1}{2}"),
    (r"So $x = -\frac{1}{2}$.", r"-\frac{1}{2}"),
    ("It is 25% in all.", "25%"),
    ("It is **12**.", "12"),
    ("the primes 3,5", "5"),
    ("He ran 5km.", "5"),
    # a number that does not stand alone is not the answer, nor is one before it
    (r"Of 12, it is $2\sqrt{3}$.", None),
    ("Of 12, it is x + 3", None),
    ("Of 12, it is x^2", None),
    ("Of 12, it is 2x", None),
    ("Of 12, it is 10-3", None),
    ("Of 12, it is x - 3", None),
    ("Of 12, it is 2(x+1)", None),
    ("At 10:30", None),
    ("on 2020/01/02", None),
    ("x_2", None),
    ("9**12", None),
    # nothing to read
    ("I do not know.", None),
    ("", None),
    ("Let me think step by step. First", None),
]

# What is equal: (text, reference, right?)
EQUAL = [
    # integers and signs
    (r"\boxed{12}", "12", True),
    (r"\boxed{12}", "13", False),
    (r"\boxed{012}", "12", True),
    (r"\boxed{+12}", "12", True),
    (r"\boxed{-12}", "12", False),
    (r"\boxed{- 12}", "-12", True),
    ("\\boxed{\N{MINUS SIGN}12}", "-12", True),
    ("The answer is - 12", "12", False),
    ("The answer is \N{MINUS SIGN}3", "-3", True),
    (r"\boxed{12.}", "12", True),
    (r"\boxed{1 2}", "12", False),
    ("#### 42", "42", True),
    ("18 - 2 = 16\n#### 16", "18", False),
    # thousands
    ("The answer is 1,234.", "1234", True),
    (r"\boxed{1,234}", "1234", True),
    (r"\boxed{1234}", "1,234", True),
    (r"\boxed{1,234}", "234", False),
    (r"\boxed{1\,000}", "1000", True),
    (r"\boxed{1 000 000}", "1000000", True),
    (r"\boxed{10{,}080}", r"10,\!080", True),
    (r"\boxed{11111111100}", r"11,\! 111,\! 111,\! 100", True),
    (r"\boxed{12,34}", "1234", False),
    (r"\boxed{1{,}234, 5}", r"5, 1,\!234", True),
    ("They sold 2,500 tickets", "2500", True),
    # decimals
    (r"\boxed{0.5}", ".5", True),
    (r"\boxed{.50}", "0.5", True),
    (r"\boxed{3.0}", "3", True),
    (r"\boxed{3.21}", "3.2", False),
    (r"\boxed{0.333}", r"\frac{1}{3}", False),
    (r"\boxed{0.35625}", ".35625", True),
    (r"\boxed{1,234.50}", "1234.5", True),
    # fractions
    (r"\boxed{\frac{1}{2}}", "0.5", True),
    (r"\boxed{1/2}", r"\frac{1}{2}", True),
    (r"\boxed{\dfrac{17}{50}}", r"\frac{17}{50}", True),
    (r"\boxed{\tfrac{2}{4}}", r"\frac12", True),
    (r"\boxed{\frac12}", "1/2", True),
    (r"\boxed{\frac 59}", r"\frac{5}{9}", True),
    (r"\boxed{\frac1{72}}", r"\frac{1}{72}", True),
    (r"\boxed{\frac{270}7}", r"\frac{270}{7}", True),
    (r"\boxed{-\frac{1}{2}}", r"\frac{-1}{2}", True),
    (r"\boxed{\frac{2}{1}}", r"\frac{1}{2}", False),
    (r"\boxed{\frac{12}{0}}", "12", False),
    ("The answer is 3/4.", "0.75", True),
    ("\\boxed{½}", r"\frac{1}{2}", True),
    # mixed numbers
    (r"\boxed{1\frac{4}{5}}", r"\frac{9}{5}", True),
    (r"\boxed{137 \frac{1}{2}}", "137.5", True),
    (r"\boxed{-1\frac{1}{2}}", "-1.5", True),
    (r"\boxed{-1\frac{1}{2}}", "-0.5", False),
    # percent
    (r"\boxed{50\%}", r"50\%", True),
    (r"\boxed{50}", r"50\%", True),
    (r"\boxed{0.5}", r"50\%", True),
    (r"\boxed{50 \text{ percent}}", r"50\%", True),
    (r"\boxed{0.5\%}", r"50\%", False),
    (r"\boxed{5000}", r"50\%", False),
    ("It grew by 50%", "50", True),
    # money
    (r"\boxed{\$36}", "36", True),
    (r"\boxed{36}", r"\$36", True),
    (r"\boxed{36 \text{ dollars}}", r"\$36", True),
    (r"\boxed{36 \text{ cents}}", r"\$36", False),
    (r"\boxed{\$18.90}", "18.9", True),
    (r"\boxed{-\$5}", "-5", True),
    ("The answer is $18.", "18", True),
    ("In total she earns $32,348", r"\$32,\!348", True),
    # units and degrees
    (r"\boxed{12 \text{ cm}}", "12", True),
    (r"\boxed{12}", r"12 \text{ cm}", True),
    (r"\boxed{12\,\mathrm{cm}}", r"12 \text{ cm}", True),
    (r"\boxed{12 cm}", r"12 \text{ cm}", True),
    (r"\boxed{12 \text{ m}}", r"12 \text{ cm}", False),
    (r"\boxed{12 \text{ cm}^2}", r"12 \text{ cm}", False),
    (r"\boxed{15\mbox{ cm}^2}", "15", True),
    (r"\boxed{864}", r"864 \mbox{ inches}^2", True),
    (r"\boxed{8\pi \text{ inches}}", r"8\pi", True),
    (r"\boxed{6 \text{ square units}}", "6", True),
    (r"\boxed{90^\circ}", "90", True),
    (r"\boxed{90}", r"90^{\circ}", True),
    ("\\boxed{90°}", r"90^\circ", True),
    (r"\boxed{90 \text{ degrees}}", r"90^\circ", True),
    (r"\boxed{90 \text{ minutes}}", r"90^\circ", False),
    ("The answer is 5 apples.", "5", True),
    (r"\boxed{2x}", "2", False),
    (r"\boxed{2 pi}", "2", False),
    (r"\boxed{\text{not } 12}", "12", False),
    # radicals and pi
    (r"\boxed{11\sqrt2}", r"11\sqrt{2}", True),
    (r"\boxed{70 \sqrt{2}}", r"70\sqrt{2}", True),
    ("\\boxed{3√5}", r"3 \sqrt{5}", True),
    (r"\boxed{\sqrt{3}}", r"\sqrt{5}", False),
    (r"\boxed{\sqrt{2}}", "2", False),
    (r"\boxed{\sqrt{3}/3}", r"\frac{\sqrt{3}}{3}", True),
    (r"\boxed{12\pi}", r"12 \pi", True),
    ("\\boxed{12π}", r"12\pi", True),
    (r"\boxed{\pi/6}", r"\frac{\pi}{6}", True),
    (r"\boxed{-\pi/6}", r"-\frac{\pi}{6}", True),
    (r"\boxed{\pi}", "3.14", False),
    # scientific notation
    (r"\boxed{3 \times 10^5}", "300000", True),
    (r"\boxed{6.72 \times 10^{-5}}", ".0000672", True),
    (r"\boxed{1e3}", "1000", True),
    (r"\boxed{10^3}", "1000", True),
    (r"\boxed{1.5 \cdot 10^{2}}", "150", True),
    (r"\boxed{3 \times 10^5}", "30000", False),
    (r"\boxed{1e999}", "12", False),
    # names and equations
    (r"\boxed{x=3}", "3", True),
    (r"\boxed{3}", "x=3", True),
    (r"\boxed{y=3}", "x=3", False),
    (r"\boxed{x_1 = 3}", "3", True),
    (r"\boxed{f(2) = 3}", "3", True),
    (r"\boxed{\text{Total cost} = 3}", "3", True),
    (r"\boxed{AB = 3}", "3", True),
    (r"\boxed{\theta = 3}", "3", True),
    (r"\boxed{x=7=12}", "12", False),
    (r"\boxed{2x=12}", "12", False),
    (r"\boxed{7=12}", "12", False),
    (r"\boxed{x(x-1)=12}", "12", False),
    (r"\boxed{2x+3}", "y = 2x + 3", True),
    (r"\boxed{x \in [-2,7]}", "[-2,7]", True),
    (r"\boxed{(x,y) = (1,2)}", "(1,2)", True),
    # tuples and intervals
    (r"\boxed{(1,2)}", "(1, 2)", True),
    (r"\boxed{\left( 3, \frac{\pi}{2} \right)}", r"(3,\frac{\pi}{2})", True),
    (r"\boxed{(3, \pi/2)}", r"(3,\frac{\pi}{2})", True),
    (r"\boxed{(2,1)}", "(1,2)", False),
    (r"\boxed{(1,2,3)}", "(1,2)", False),
    (r"\boxed{(0.5,2)}", r"\left(\frac12, 2\right)", True),
    (r"\boxed{[1,2)}", "[1,2)", True),
    (r"\boxed{[1,2]}", "[1,2)", False),
    (r"\boxed{(1,2)}", "[1,2]", False),
    (r"\boxed{(-\infty,2)\cup(3,\infty)}", r"(-\infty, 2) \cup (3, \infty)", True),
    (r"\boxed{(3,\infty)\cup(-\infty,2)}", r"(-\infty, 2) \cup (3, \infty)", True),
    (r"\boxed{(-\infty,2]\cup(3,\infty)}", r"(-\infty, 2) \cup (3, \infty)", False),
    (r"\boxed{(12)}", "12", True),
    (r"\boxed{1,2}", "(1,2)", False),
    # sets and lists
    (r"\boxed{\{2,1\}}", r"\{1,2\}", True),
    (r"\boxed{\{1,2\}}", "(1,2)", False),
    (r"\boxed{-2, 1}", "1,-2", True),
    (r"\boxed{1}", "1,-2", False),
    (r"\boxed{12, 13}", "12", False),
    (r"\boxed{x = 1 \text{ or } x = -2}", "1,-2", True),
    (r"\boxed{3, 5, \text{ and } 7}", "3, 5, 7", True),
    (r"\boxed{1 and 2}", "1,2", True),
    (r"\boxed{1+\sqrt{19}, 1-\sqrt{19}}", r"1 \pm \sqrt{19}", True),
    (r"\boxed{\{1+\sqrt{5}, 1-\sqrt{5}, -2\}}", r"\{1\pm\sqrt{5},-2\}", True),
    (r"\boxed{\pm 2}", "2, -2", True),
    (r"\boxed{2}", r"\pm 2", False),
    (r"\boxed{\emptyset}", r"\{\}", True),
    # matrices
    (
        r"\boxed{\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}}",
        r"\begin{pmatrix} -\frac13 \\ \frac23 \end{pmatrix}",
        True,
    ),
    (
        r"\boxed{\begin{pmatrix} 1 & 2 & 3 & 4 \end{pmatrix}}",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        False,
    ),
    # letters and words
    (r"\boxed{\text{C}}", "C", True),
    (r"\boxed{C}", r"\text{(C)}", True),
    (r"\boxed{\textbf{(D)}}", "C", False),
    (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", True),
    (r"\boxed{East}", r"\text{east}", True),
    (r"\boxed{\text{act}}", "cat", False),
    # expressions as text
    (r"\boxed{p-q}", "p - q", True),
    (r"\boxed{4210_5}", "4210_{5}", True),
    (r"\boxed{12_8}", "12", False),
    (r"\boxed{\cot{x}}", r"\cot y", False),
    (r"\boxed{5x-7y+11z+4=0}", "5x - 7y + 11z + 4 = 0", True),
    # several boxes, boxes in boxes, none
    (r"\boxed{1} is too small, so \boxed{2}", "2", True),
    (r"\boxed{2}? No: \boxed{3}", "2", False),
    (r"\boxed{\boxed{13}}", "13", True),
    ("We add 3 and 9 and then", "12", False),
    ("2 + 2", "2", False),
    # the reference may have a box
    (r"\boxed{5}", r"so it is $\boxed{5}$", True),
]

# Where `plain` knowingly differs from `math`: (text, reference, plain is right?, reason)
DIFFERENCES = [
    (r"\boxed{2+2}", "4", False, "nothing is evaluated"),
    (r"\boxed{\sqrt{144}}", "12", False, "nothing is evaluated"),
    (r"\boxed{q - p}", "-p + q", False, "terms in another order"),
    (r"\boxed{2(k+1)}", "2k+2", False, "factored"),
    (r"\boxed{3=x}", "x=3", False, "the unknown on the right"),
    (r"\boxed{\sqrt{18}}", r"3\sqrt{2}", False, "another form of a radical"),
    (r"\boxed{0.333333}", r"\frac{1}{3}", False, "no rounding"),
    (r"\boxed{50\%}", "0.5", False, "percent counts only if the reference has it"),
    (r"\boxed{0.5\%}", "0.5", True, "a percent sign that the reference lacks is dropped"),
    (r"\boxed{1 \le x < 2}", "[1,2)", False, "inequalities are text"),
    (r"\boxed{[1,2[}", "[1,2)", False, "brackets turned outwards are text"),
    (r"\boxed{x=2}, \boxed{x=1}", "1, 2", False, "only the last box is read"),
    (r"\boxed{1} or \boxed{2}", "2", True, "only the last box is read"),
    (r"\boxed{12 \text{ centimeters}}", r"12 \text{ cm}", False, "no table of units"),
    (r"\boxed{12}", "12_8", False, "the base is part of the text"),
    (r"So $x$ is $2\sqrt{3}$.", r"2\sqrt{3}", False, "no formula is read without box or mark"),
    ("The result is 7 times as many as 12 + 3 = 15 - 8", "7", False, "an expression ends the text"),
    (r"\boxed{1 1/2}", "1.5", True, "a mixed number without LaTeX"),
    ("The answer is 5 hours and 30 minutes.", "5", False, "several numbers after the mark"),
    (r"\boxed{5 \text{ million}}", "5", False, "a million is no unit"),
    (r"\boxed{\{1,1,2\}}", r"\{1,2,2\}", False, "each element as often"),
    ("The answer is (C).", r"\text{(C)}", True, "letters are read without LaTeX"),
    ("The answer is even.", r"\text{even}", True, "words are read without LaTeX"),
    (r"\boxed{6 + 9 i}", "6+9i", True, "a blank before the imaginary unit"),
    (
        r"\boxed{\begin{bmatrix} 1 & 2 \\[2pt] 3 & 4 \end{bmatrix}}",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        True,
        "the looks of a matrix",
    ),
]


@pytest.mark.parametrize(("text", "answer"), READ)
def test_what_is_read(text, answer):
    assert plain(text, "7777").answer == answer


@pytest.mark.parametrize(("text", "reference", "right"), EQUAL)
def test_what_is_equal(text, reference, right):
    assert plain(text, reference).right is right


def test_no_case_is_listed_twice():
    assert len({case[:2] for case in EQUAL}) == len(EQUAL) and len(EQUAL) >= 120


@pytest.mark.parametrize(("text", "reference", "right"), EQUAL)
def test_math_verify_and_its_rules_agree_on_all_of_them(text, reference, right):
    assert MATH(text, reference).right is right


@pytest.mark.parametrize(("text", "reference", "right", "reason"), DIFFERENCES)
def test_known_differences(text, reference, right, reason):
    assert plain(text, reference).right is right, reason
    assert MATH(text, reference).right is not right, reason


def test_it_shares_no_code_with_math():
    """It imports Python's own modules, and of this package only the verdict, and its own forms."""
    for file in (module.__file__, forms.__file__):
        imported = set()
        for node in ast.walk(ast.parse(Path(str(file)).read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(str(node.module))
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        ours = {name for name in imported if name.startswith("mugrpo")}
        assert ours <= {"mugrpo.disk.records", "mugrpo.rewards.forms", "mugrpo.rewards.verdict"}
        assert {name.split(".")[0] for name in imported - ours} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_compared_of_a_hostile_answer_is_short_and_not_12(name):
    verdict = plain(HOSTILE[name], "12")
    assert len(verdict.answer or "") <= LONGEST_ANSWER
    assert name in TRULY_12 or verdict.status in (Status.WRONG, Status.NO_ANSWER)


def test_only_the_end_of_a_text_is_read_and_no_long_answer():
    blanks = " " * (LONGEST_TEXT - 20)
    assert read(r"\boxed{12}" + blanks) == "12"
    assert read(r"\boxed{12}" + blanks + " " * 20) is None
    assert read(rf"\boxed{{{'7' * LONGEST_ANSWER}}}") == "7" * LONGEST_ANSWER
    assert read(rf"\boxed{{{'7' * (LONGEST_ANSWER + 1)}}}") is None


@pytest.mark.parametrize("reference", ["", "$", "   ", r"\boxed{}", "7" * (LONGEST_ANSWER + 1)])
def test_a_reference_that_cannot_be_read_is_refused(reference):
    with pytest.raises(ValueError, match="is empty or has more than 1000 characters"):
        plain("12", reference)
