"""Verdicts of `plain`, each judged by hand first, and that no text costs it much."""

from __future__ import annotations

import subprocess
import sys

from mugrpo.disk.records import Status
from mugrpo.rewards.math.plain import plain
from mugrpo.rewards.math.response import LONGEST_ANSWER, LONGEST_TEXT
from tests.cases import table
from tests.rewards.hostile import HOSTILE, TRULY_12

# What is read: (text, the answer in it or None)
READ = [
    # boxes
    (r"\boxed{12}", "12"),
    (r"First \boxed{1}, then \boxed{2}.", "2"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{x = \boxed{5}}", "x = {5}"),
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
    ("So it falls to -7 degrees", "-7 degrees"),
    ("So it falls to \N{MINUS SIGN}7 degrees", "-7 degrees"),
    ("About 1/2 of it", "1/2"),
    (r"So $x = \frac{1}{2}$.", r"\frac{1}{2}"),
    (r"So $x = -\frac{1}{2}$.", r"-\frac{1}{2}"),
    ("It is 25% in all.", "25 %"),
    ("It is **12**.", "12"),
    ("the primes 3,5", "5"),
    ("He ran 5km.", "5 km"),
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


@table(("text", "answer"), READ)
def test_what_is_read(text, answer):
    assert plain(text, "7777").answer == answer


def test_it_computes_nothing_with_packages():
    """Neither it nor what it imports of this package needs anything but Python."""
    code = "import sys; from mugrpo.rewards.math import plain; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sympy", "math_verify", "torch"} & set(run.stdout.split())


@table("name", HOSTILE)
def test_what_is_compared_of_a_hostile_answer_is_short_and_not_12(name):
    verdict = plain(HOSTILE[name], "12")
    assert len(verdict.answer or "") <= LONGEST_ANSWER
    assert name in TRULY_12 or verdict.status in (Status.WRONG, Status.NO_ANSWER)


def test_only_the_end_of_a_text_is_read_and_no_long_answer():
    filler = "." * (LONGEST_TEXT - 20)
    assert plain(r"\boxed{12}" + filler, "12").right
    assert not plain(r"\boxed{12}" + filler + "." * 20, "12").right
    assert plain(rf"\boxed{{{'7' * LONGEST_ANSWER}}}", "7" * LONGEST_ANSWER).right
    assert plain(rf"\boxed{{{'7' * (LONGEST_ANSWER + 1)}}}", "7").status is Status.NO_ANSWER
