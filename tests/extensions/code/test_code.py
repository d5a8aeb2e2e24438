"""The reward "code" outside its sandbox: programs in texts, tests in data, comparisons, choices."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from mugrpo.config.base import WorkerOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Problem, Response, Score, Status
from mugrpo.extensions.code import CodeOptions, bubblewrap, judging
from mugrpo.extensions.code.asserts import Assertion, read_assert
from mugrpo.extensions.code.bubblewrap import filter_program
from mugrpo.extensions.code.cases import Printed, Returned, read_tests, with_function
from mugrpo.extensions.code.comparing import same_text, same_value, value_of
from mugrpo.extensions.code.inside import LONGEST_INTEGER, encode
from mugrpo.extensions.code.judging import LONGEST_PROGRAM, Code, read_program
from mugrpo.extensions.code.sandbox import Outcome, Request, outcomes
from mugrpo.rewards.grading import Grader
from tests.cases import refusal, table

MARKS = ("py", "python3", "Python", "PYTHON", "{.python}", "{.python .number}", "{python}", "py3")
MARKS += ("python title=x", 'python {title="x"}', "python3.11", "python:a.py", " python")


@table(
    ("text", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("First:\n```py\n1\n```\nBetter:\n```py\n2\n```\nDone.", "2"),
        ("```py\n1\n```\nIt prints\n```\n5\n```", "1"),  # output, without a mark
        ("```py\n1\n```\nIt prints\n```\n5", "1"),
        ("```\n1\n```\nBetter:\n```\n2", None),  # cut off
        *((f"```{mark}\n1\n```\n```\n2\n```", "1") for mark in MARKS),
        *((f"```\n1\n```\n```{mark}\n2\n```", "1") for mark in ("text", "pycon", "cpp", "pyx")),
        ("```Python3 title=x\n1\n2\n```", "1\n2"),
        ("~~~\na = '```'\n```\n~~~", "a = '```'\n```"),  # another fence does not close it
        ("```python\r\nx = '\x0c\u2028'\r\n```\r\n", "x = '\x0c\u2028'"),
        ("1. So:\n   ```python\n   if 1:\n       2\n 3\n   ```", "if 1:\n    2\n3"),
        ("- So:\n\n      ```py\n      if 1:\n        2\n      ```", "if 1:\n  2"),  # in a list
        ("```py\nD\n    ```\nD\n```", "D\n    ```\nD"),  # a fence in a docstring
        ("```x``` is it:\n```python\n1\n```", "1"),  # marks in a line are no fence
        ("`" * 100_000 + "x`", None),
        ("```python\n1\n```\n```python\n2", None),  # cut off
        ("print(1)", None),
        ("", None),
        ("```\n" + "1" * LONGEST_PROGRAM + "1\n```", None),
    ],
)
def test_the_last_marked_block_or_else_the_last_is_the_program(text: str, program: str | None):
    assert read_program(text) == program


@table(
    ("made", "expected", "same"),
    [
        ("1 2\n", " 1\n2", True),
        ("1 2 3", "1 2", False),
        ("0.3333333", "0.33333333", True),  # differs by 3.3e-8
        ("0.33333", "0.33333333", False),  # by 3.3e-6
        ("1000001.0", "1000000.5", True),  # 5e-7 of it
        ("1000003.0", "1000000.5", False),  # 2.5e-6 of it
        ("2.0", "2", True),
        ("2.0000001", "2", False),  # an integer is expected
        ("10000000000000000000001", "1e22", True),
        ("1e22", "10000000000000000000001", False),
        ("07", "7", False),
        ("nan", "nan", True),
        ("1e9999999999", "1.5", False),
        ("1" * 1_000_000 + "x", "1.5", False),  # without the time of its square
        ("\u0663.0", "3.0", False),
        # values, which JSON describes
        ((1, (2, 3)), [1, [2, 3]], True),
        ([1, 2], [1, 2, 3], False),
        ({1: 0.1 + 0.2}, {"1": 0.3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        (7, "7", False),
        (7, 7.0000001, True),
        (7.0000001, 7, False),
        (None, False, False),
        (True, 1, True),  # as Python's ==
        (frozenset([1]), [1], False),
    ],
)
def test_outputs_are_the_same_if_their_tokens_are_and_values_if_json_describes_them(
    made: Any, expected: Any, same: bool
):
    assert (same_text if isinstance(made, str) else same_value)(made, expected) is same


@table(
    "value",
    [
        [None, True, 1, 1.5, "a\ud800", b"\x00"],
        (1, (2,), {3, (4,)}, {5: [6], "7": ()}, {frozenset({8})}),
        1 << 100_000,  # more digits than Python prints by default
        -(2**53),
        float("-inf"),
        1 + 2j,
    ],
)
def test_values_survive_the_way_out(value: Any):
    sys.set_int_max_str_digits(LONGEST_INTEGER)
    claimed = value_of(json.dumps(encode(value)))
    assert claimed == value


@table(
    "claim",
    [
        "",
        "[1",
        '{"set": [[1]]}',
        '{"dict": [[[1], 2]]}',
        '{"class": "int"}',
        "[" * 100_000,
        "9" * 100_001,
        json.dumps({"set": [n * (2**61 - 1) for n in range(201)]}),  # all have the hash 0
    ],
)
def test_what_describes_no_value_is_none(claim: str):
    with pytest.raises(ValueError):
        value_of(claim)


def test_the_forms_of_tests():
    tests = read_tests('{"inputs": ["1\\n", ["2", 3]], "outputs": ["1", "2"], "fn_name": null}')
    assert tests.cases == [Printed({"stdin": "1\n"}, "1"), Printed({"stdin": "2\n3"}, "2")]
    pairs = [{"input": "1", "output": "2", "testtype": "stdin"}]
    assert read_tests(json.dumps(pairs)).cases == [Printed({"stdin": "1"}, "2")]
    table = {"fn_name": "f", "inputs": [[1, [2]]], "outputs": [[3]], "setup": "import math"}
    tests = read_tests(json.dumps(table))
    assert tests.cases == [Returned({"call": "f", "arguments": [1, [2]]}, [3])]
    assert tests.setup == "import math"
    lines = {"fn_name": "f", "inputs": ['[1]\n"a"', ""], "outputs": ["[3]", "null"]}
    by_lines = [Returned({"call": "f", "arguments": [[1], "a"]}, [3], listed=False)]
    by_lines += [Returned({"call": "f", "arguments": []}, None, listed=False)]
    assert read_tests(json.dumps(lines)).cases == by_lines
    row = [
        {"input": given, "output": expected, "testtype": "functional"}
        for given, expected in zip(lines["inputs"], lines["outputs"], strict=True)
    ]
    for cell, metadata in ((row, {"func_name": "f"}), (json.dumps(row), '{"func_name": "f"}')):
        assert read_tests(json.dumps(with_function(cell, metadata))).cases == by_lines
    assert with_function(pairs, None) == with_function(pairs, "{}") == pairs
    statements = ["assert f(1) == 2", "assert -3 == f(2), 'no'"]
    cases = [Assertion({"value": "f(1)"}, 2), Assertion({"value": "f(2)"}, -3)]
    assert read_tests(json.dumps(statements)).cases == cases
    assert read_tests(json.dumps({"asserts": statements})).cases == cases
    one = Outcome(0, "3")  # a list of one result stands for it in APPS alone
    assert Returned({}, [3]).passed(one) and not Returned({}, [3], listed=False).passed(one)


@pytest.mark.parametrize(
    ("statement", "asked", "rest"),
    [
        ("assert f(1)[0] == [1, 2]", "f(1)[0]", [1, 2]),
        ("assert set(f(1)) == {1, 2}", "(f(1),)", "bool(set(__given__[0]) == {1, 2})"),
        ("assert f(1) == set()", "f(1)", set()),
        ("assert f(1) == True", "f(1)", True),
        ("assert sum(10, 15) == 25", "sum(10, 15)", 25),  # the program has a sum of its own
        ("assert abs(f(1) - 2) == 0", "(f(1),)", "bool(abs(__given__[0] - 2) == 0)"),
        ("assert set(f(1)) == math.pi", "(f(1),)", "bool(set(__given__[0]) == math.pi)"),
        ("assert f(1) == set([1])", "(f(1),)", "bool(__given__[0] == set([1]))"),
        ("assert f(1)", "(f(1),)", "bool(__given__[0])"),
        ("assert not f(1)", "(f(1),)", "bool(not __given__[0])"),
        ("assert abs(f(1) - 2) < 1", "(f(1),)", "bool(abs(__given__[0] - 2) < 1)"),
        (
            "assert f(1) == g(2) == A.h(f(3))",
            "(f(1), g(2), A.h(f(3)),)",
            "bool(__given__[0] == __given__[1] == __given__[2])",
        ),
        ("assert math.isclose(A(1).x, 2.0)", "(A(1).x,)", "bool(math.isclose(__given__[0], 2.0))"),
        ("assert f(1) is None", "(f(1),)", "bool(__given__[0] is None)"),
        ("assert all(x > 0 for x in f(3))", "(f(3),)", "bool(all((x > 0 for x in __given__[0])))"),
    ],
)
def test_an_assert_is_taken_apart(statement: str, asked: str, rest: Any):
    test = read_assert(1, statement, {"math"})
    assert test.job == {"value": asked}
    assert (test.check if isinstance(rest, str) else test.expected) == rest


@table(
    ("tests", "sentence"),
    [
        ("not JSON", "the tests are not JSON: Expecting value"),
        ("[]", "the tests are neither a table nor a list"),
        ('{"inputs": []}', "the tests have no list of inputs; write"),
        ('{"inputs": ["1"], "outputs": ["1", "2"]}', "there are 1 inputs but 2 outputs"),
        ('{"inputs": [1], "outputs": ["1"]}', "test 1 has '1' for a text"),
        ('{"fn_name": "f", "inputs": [1], "outputs": [1]}', "has '1' for a list of arguments"),
        ('{"fn_name": "f()", "inputs": [[]], "outputs": [1]}', "is not a function's name"),
        ('{"fn_name": "f", "inputs": ["[1"], "outputs": ["1"]}', "test 1 is not JSON: Expecting"),
        ('[{"input": "1", "output": "1", "testtype": "functional"}]', "metadata with a func_name"),
        ('{"asserts": ["assert f("]}', "assert 1 is not Python: "),
        ('["assert f(1)", "print(f(1))"]', "assert 2 is 'print(f(1))', not one assert"),
        ('["assert True"]', "assert 1 calls nothing of the program"),
        ('["assert math.isclose(f(1), 2)"]', 'assert 1 needs the setup "import math"'),
        ('{"asserts": ["assert f(1)"], "setup": "from math import *"}', "import what they need by"),
        ('["assert all(f(i) > i for i in range(3))"]', "assert 1 calls f for each i; write"),
        ('{"asserts": ["assert f(1)"], "setup": "import"}', "the setup of the tests is not Python"),
    ],
)
def test_tests_that_do_not_parse_are_refused(tests: str, sentence: str):
    with pytest.raises(ValueError) as refused:
        read_tests(tests)
    assert sentence in str(refused.value)


def test_the_filter_is_a_program_for_its_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    small = filter_program()
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    large = filter_program()
    assert small and large and len(small) % 8 == 0
    assert len(large) - len(small) == 2 * 2 * 8  # fork and vfork, two instructions each
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert filter_program() is None


def test_without_a_sandbox_the_reward_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda _: None)
    found = refusal(judging.choose, CodeOptions())
    assert "does not work (bwrap is not installed)" in found and found.endswith(judging.REMEDY)


def test_a_sandbox_that_fails_on_a_small_program_is_none(monkeypatch: pytest.MonkeyPatch):
    class Broken:
        name = "broken"

        def run(self, request: Request, patience: float) -> Iterator[Outcome]:
            yield Outcome(0, "")

    monkeypatch.setattr(judging, "Bubblewrap", lambda _: Broken())
    found = judging.check()[0]
    assert found == "none (a program that prints a line ended with Outcome(status=0, output=''))"


ADD = "```\ndef add(a, b): return a + b\nif __name__ == '__main__': print(add(*eval(input())))\n```"
CALLS = json.dumps({"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 8]})


@pytest.fixture(scope="module")
def sandboxed() -> CodeOptions:
    options = CodeOptions(partial=True, weight=2.0)
    try:
        Code(options)
    except UsageError as error:
        pytest.skip(str(error))
    return options


def test_asserts_are_judged_outside_and_no_test_sees_what_another_has_left(sandboxed: CodeOptions):
    asserts = ["assert add(1, 2) == 3", "assert abs(add(1, 3) - 4) < .1", "assert add(1, 1) < 2"]
    verdict = Code(sandboxed)(ADD, json.dumps(asserts))
    assert verdict.value == pytest.approx(2 / 3)
    assert verdict.detail == "test 3 of 3: another result"
    request = Request(REMEMBERING, [{"stdin": ""}] * 3)
    told = [outcome.output.split() for outcome in Code(sandboxed).sandbox.run(request, 60.0)]
    assert [before for _, before in told] == ["[]"] * 3


@table(
    "line", ["no JSON", "{", "7", '{"status": "0", "output": ""}', '{"status": 0}', "[" * 10_000]
)
def test_a_malformed_line_after_the_start_is_wrong(line: str, monkeypatch: pytest.MonkeyPatch):
    """A program that wrote into its judge's stream would make one."""
    told = ["sh", "-c", 'echo ready; echo "$0"', line]
    stand_in = SimpleNamespace(name="sh", run=lambda _, patience: outcomes(told, "", patience))
    monkeypatch.setattr(judging, "choose", lambda _: stand_in)
    verdict = Code(CodeOptions())(ADD, CALLS)
    assert verdict.status is Status.WRONG
    assert verdict.detail == "test 1 of 2: the program ended the sandbox"


REMEMBERING = """
import os
before = [place for place in ('.', '/tmp') if os.path.lexists(place + '/left')]
for place in ('.', '/tmp'):
    try:
        os.makedirs(place + '/left/inside')
        open(place + '/left/inside/file', 'w').close()
        os.symlink('/', place + '/left/link')
    except OSError: pass
print(os.getcwd(), before)
"""


def test_scores(sandboxed: CodeOptions):
    """Partial credit, the program and the reason in the parts, and what the user is told."""
    texts = [ADD, "no code", ADD.replace("a + b", "a * b")]
    answers = [Response(Problem("p", "Add.", CALLS), t, [1], FinishReason.STOP) for t in texts]
    with closing(Grader((sandboxed,), WorkerOptions(count=1))) as grader:
        said = grader.start()
        half, none, wrong = grader.scores(answers)
    assert said[0].startswith("programs run in bubblewrap")
    assert (half.status, half.reward, half.parts["code"]) == (Status.WRONG, 1.0, 0.5)
    assert half.parts["answer"].startswith("def add(a, b): return a + b\\n")
    assert half.parts["extra/code"] == "test 2 of 2: another result"
    assert none == Score(Status.NO_ANSWER, 0.0, {"code": 0.0}, none.logged)
    assert (wrong.reward, wrong.parts["extra/code"]) == (0.0, "test 1 of 2: another result")
