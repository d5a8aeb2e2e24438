"""The verifier "code": the program of a response, judged by tests."""

import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Status
from mugrpo.extensions.code import CodeOptions
from mugrpo.extensions.code.asserts import Assertion
from mugrpo.extensions.code.bubblewrap import Bubblewrap
from mugrpo.extensions.code.cases import Case, Tests, read_tests
from mugrpo.extensions.code.sandbox import TRIAL, Outcome, Request, SandboxError
from mugrpo.rewards.math.response import final_part
from mugrpo.rewards.verdict import Unfinished, Verdict

_STARTING = 60.0  # seconds
REMEDY = "install bubblewrap (apt-get install bubblewrap) where user namespaces are allowed"


def choose(options: CodeOptions) -> Bubblewrap:
    """Return the sandbox for `options`, which has run a program. Raises UsageError if none works.

    A program never runs outside of one.
    """
    try:
        return _working(options)
    except (SandboxError, Unfinished) as error:
        raise UsageError(
            f"the reward code runs programs in a sandbox only, and it does not work ({error}); "
            f"{REMEDY}"
        ) from None


def check() -> tuple[str, str]:
    """Return what `mugrpo doctor` says of the sandbox, and the remedy if there is none."""
    try:
        return f"{_working(CodeOptions()).name}, for the reward code", ""
    except (SandboxError, Unfinished) as error:
        return f"none ({error})", f"for the reward code, {REMEDY}"


def _working(options: CodeOptions) -> Bubblewrap:
    sandbox = Bubblewrap(options.timeout)
    with closing(sandbox.run(TRIAL, _STARTING)) as ran:
        told = next(ran, None)
    if told != Outcome(0, "one of the wises\n"):
        raise SandboxError(f"a program that prints a line ended with {told}")
    return sandbox


LONGEST_PROGRAM = 100_000  # characters; something longer is not taken for a program

# The mark may be an attribute, as in {.python}. In a list, a fence has any indentation. What ends a
# block is at most 3 blanks further in: other fences may be in a docstring of the program.
_BLOCK = re.compile(
    r"^([ \t]*)(`{3,}+(?!.*`)|~{3,})[ \t]*([{.]*[\w+#.-]*)[^\n]*\n"
    r"(?:(?P<lines>(?:(?!^\1?[ \t]{0,3}\2[`~]*[ \t]*$)[^\n]*\n)*)^\1?[ \t]{0,3}\2[`~]*[ \t]*$)?",
    re.MULTILINE,
)
_PYTHON = re.compile(r"[{.]*py(?:thon)?[0-9.]*", re.IGNORECASE)

Check = tuple[int, Mapping[str, Any]]  # a test's index, and a job for the second sandbox


class Code:
    """The verifier that runs a text's program against tests, in the sandbox `sandbox`.

    Calling it raises ValueError if the reference has no tests, Unfinished if the program takes too
    long by the clock, and SandboxError if the sandbox fails. Making it raises UsageError if no
    sandbox works here.
    """

    def __init__(self, options: CodeOptions) -> None:
        self._options = options
        self.sandbox = choose(options)
        self.said = f"programs run in {self.sandbox.name}"  # the user should know
        self._tests = lru_cache(maxsize=16)(read_tests)  # a group's responses have the same ones

    def __call__(self, text: str, reference: str) -> Verdict:
        tests = self._tests(reference)
        program = read_program(final_part(text))
        if program is None:
            return Verdict(Status.NO_ANSWER)
        passed, failure = self._judged(program, tests)
        right = passed == len(tests.cases)
        share = passed / len(tests.cases) if self._options.partial else float(right)
        return Verdict(Status.RIGHT if right else Status.WRONG, program, share, failure)

    def _judged(self, program: str, tests: Tests) -> tuple[int, str | None]:
        """Return how many tests a program passes, and what the first failure is.

        Without partial credit, the first failure ends it.
        """
        cases, checks = tests.cases, list[Check]()
        failures = dict[int, str]()
        request = Request(program, [case.job for case in cases], tests.setup)
        with closing(self.sandbox.run(request, self._options.patience)) as outcomes:
            for number, case in enumerate(cases):
                outcome = next(outcomes, None)
                if failure := self._failure(case, outcome):
                    failures[number] = failure
                    if not self._options.partial:
                        return number, _named(failures, len(cases))
                elif isinstance(case, Assertion) and case.check is not None:
                    assert outcome is not None
                    checks.append((number, case.checking(outcome)))
        failures |= self._checked(tests.setup, checks)
        return len(cases) - len(failures), _named(failures, len(cases))

    def _failure(self, case: Case, outcome: Outcome | None) -> str:
        """Return why a test is not passed, or "" if it is."""
        if outcome is None:
            return "the program ended the sandbox"
        if outcome.output is None:
            return "too much output"
        if outcome.status == -signal.SIGXCPU:
            return "out of CPU time"
        if status := outcome.status:
            return f"ended with status {status}" if status > 0 else f"ended by signal {-status}"
        with suppress(ValueError, RecursionError):
            return "" if case.passed(outcome) else "another result"
        return "no result"

    def _checked(self, setup: str, checks: Sequence[Check]) -> dict[int, str]:
        """Return the failures of asserts that a sandbox without the program evaluates."""
        if not checks:
            return {}
        request = Request("", [job for _, job in checks], setup)
        failures = {}
        with closing(self.sandbox.run(request, self._options.patience)) as outcomes:
            for number, _ in checks:
                outcome = next(outcomes, None)
                if outcome is None or outcome.status or outcome.output != "true":
                    failures[number] = "another result"
        return failures


def _named(failures: dict[int, str], count: int) -> str | None:
    if not failures:
        return None
    first = min(failures)
    return f"test {first + 1} of {count}: {failures[first]}"


def read_program(text: str) -> str | None:
    """Return the last fenced block that is marked as Python, else the last one without a mark.

    So output that is shown after a program is not taken for it. A block that is not closed is cut
    off: if it would be the program, there is none. As in CommonMark, a fence has at least three
    marks, its end as many, and lines lose as much indentation as the fence has.
    """
    programs: dict[bool, str | None] = {}  # by whether they are marked
    for block in _BLOCK.finditer(text.replace("\r\n", "\n")):
        lines, indented = block["lines"], len(block[1])
        if not block[3] or _PYTHON.fullmatch(block[3]):
            program = lines and re.sub(rf"(?m)^[ \t]{{0,{indented}}}", "", lines)
            programs[bool(block[3])] = program and program.removesuffix("\n")
        if lines is None:
            break
    source = programs.get(True, programs.get(False))
    return source if source and source.strip() and len(source) <= LONGEST_PROGRAM else None
