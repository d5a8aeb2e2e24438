"""Hostile programs in bubblewrap, if it is here: each gets a status, and nothing is left.

One or two of each kind run by default (`KINDS`), and all of them with the mark `long`.
"""

import json
import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from mugrpo.config.base import WorkerOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Problem, Response, Score, Status
from mugrpo.extensions.code import CodeOptions
from mugrpo.extensions.code.judging import Code
from mugrpo.extensions.code.sandbox import Request
from mugrpo.rewards.grading import Grader
from tests.extensions.code.programs import (
    ASSERTED,
    CALLED,
    KINDS,
    LIAR,
    PRINTING,
    SETUP,
    SUM_ASSERTS,
    SUM_CALL,
    SUM_STDIN,
    TELLING,
    TRULY_RIGHT,
)
from tests.waiting import soon

MARK = f"left-by-a-program-{uuid.uuid4().hex}"
CASES = {
    **{f"printing: {name}": (program, SUM_STDIN) for name, program in PRINTING.items()},
    **{f"called: {name}": (program, SUM_CALL) for name, program in CALLED.items()},
    **{f"asserted: {name}": (CALLED[name], SUM_ASSERTS) for name in ASSERTED},
}


def answer(program: str, tests: object) -> Response:
    problem = Problem("p", "Add.", json.dumps(tests))
    return Response(problem, f"Here:\n```python\n{program}\n```", [1], FinishReason.STOP)


@pytest.fixture(scope="module")
def options() -> CodeOptions:
    options = CodeOptions(timeout=1)
    try:
        Code(options)
    except UsageError as error:
        pytest.skip(str(error))
    return options


def _below(pid: int) -> list[int]:
    """Return the children of a process: of a worker, the sandboxes."""
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.mark.parametrize(
    "names", [KINDS, pytest.param(tuple(CASES), marks=pytest.mark.long)], ids=["kinds", "all"]
)
def test_hostile_programs_are_wrong_and_leave_nothing(options: CodeOptions, names: Sequence[str]):
    """One worker judges all of them, and none ends it. Nothing is written and nobody reached."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        judged = _judged(options, names, str(listener.getsockname()[1]))
        with pytest.raises(BlockingIOError):
            listener.accept()
    ends = (Status.WRONG, Status.UNFINISHED)  # by the clock, if the machine is busy
    wrong = {n for n, score in judged.items() if score.status in ends and score.reward == 0}
    assert {name: score for name, score in judged.items() if name not in wrong} == {}
    places = ("/", "/tmp", "/usr", "/etc", "/lib", "/root", "/home", "/var", "/dev", Path.home())
    assert [place for place in places if (Path(place) / MARK).exists()] == []
    assert not list(Path("/tmp").glob(f"{MARK}*"))
    # Why a program failed is kept for readers, and never decides anything.
    reasons = {n: s.parts["extra/code"] for n, s in judged.items() if s.status is Status.WRONG}
    assert reasons["printing: 8 MB"] == "test 1 of 2: too much output"
    assert reasons["printing: no output"] == "test 1 of 2: another result"
    told = "test 2 of 2: another result"  # it is 7, and then it is not 15
    assert reasons["called: equal to everything"] == told


def _judged(options: CodeOptions, names: Sequence[str], port: str) -> dict[str, Score]:
    cases = [CASES[name] for name in names]
    answers = [answer(p.replace("MARK", MARK).replace("PORT", port), tests) for p, tests in cases]
    workers = WorkerOptions(count=1, timeout=60)
    with closing(Grader((options,), workers)) as grader:
        grader.start()
        [worker] = grader._pool._workers  # type: ignore[union-attr]
        scores = list(grader.scores(answers))
        assert grader._pool._workers == [worker]  # type: ignore[union-attr]
        assert soon(lambda: not _below(worker.process.pid))
    return dict(zip(names, scores, strict=True))


def test_honest_programs_are_right(options: CodeOptions):
    verifier = Code(options)
    for program in TRULY_RIGHT.values():
        one = answer(program, SUM_STDIN)
        assert verifier(one.text, one.problem.reference).right, program
    one = answer("def add(a, b): return a + b", SUM_ASSERTS)
    assert verifier(one.text, one.problem.reference).right


@pytest.mark.parametrize("used", [True, False], ids=["equal", "unequal"])
def test_an_assert_that_tells_what_is_expected_is_not_left_to_the_program(options, used):
    verifier = Code(options.model_copy(update={"partial": True}))
    tests = {"asserts": list(TELLING.values()), "setup": SETUP}
    lie = answer(LIAR.replace("USED", str(used)), tests)
    assert verifier(lie.text, lie.problem.reference).value == 0.0
    honest = answer("def add(a, b): return a + b", tests)
    assert verifier(honest.text, honest.problem.reference).right


@pytest.mark.long
def test_sleepers(options: CodeOptions):
    programs = {
        "sleep": "import time; time.sleep(3600)",
        "a pipe that nobody opens": "import os; os.mkfifo('/tmp/p'); open('/tmp/p')",
        "a stopped process": "import os; os.kill(os.getpid(), 19)",
        "a lock": "import threading; l = threading.Lock(); l.acquire(); l.acquire()",
    }
    with closing(Grader((options,), WorkerOptions(count=4))) as grader:
        scores = list(grader.scores(answer(p, SUM_STDIN) for p in programs.values()))
    reason = "code: Unfinished: not finished within 4 seconds"
    assert scores == [Score(Status.UNFINISHED, 0.0, {"reason": reason})] * len(programs)


def test_a_program_finds_nothing_of_the_tests_but_their_inputs(options: CodeOptions):
    """It prints all that Python can reach: objects, frames, files, variables, descriptors."""
    program = """
import gc, os, sys
for found in gc.get_objects(): print(repr(found)[:10_000])
frame = sys._getframe()
while frame: print(frame.f_locals, frame.f_globals); frame = frame.f_back
print(os.environ, sys.argv, sys.orig_argv)
for place, _, files in os.walk('/tmp'): print(place, files)
for fd in range(64):
    try: print(os.read(fd, 10 ** 6))
    except OSError: pass
"""
    tests = {"inputs": ["known-input"], "outputs": ["secret-output"]}
    verifier = Code(options)
    seen = []
    run = verifier.sandbox.run

    def watched(request: Request, patience: float) -> Iterator[object]:
        for outcome in run(request, patience):
            seen.append(outcome.output)
            yield outcome

    verifier.sandbox.run = watched  # type: ignore[method-assign, assignment]
    one = answer(program, tests)
    assert not verifier(one.text, one.problem.reference).right
    assert "known-input" in seen[0] and "secret-output" not in seen[0]


def test_what_is_inside_bubblewrap(options: CodeOptions):
    program = """
import os, socket
print(os.getuid(), os.getgid(), os.getgroups(), sorted(os.environ), socket.gethostname())
print(*sorted(os.listdir('/')))
print(os.path.exists('/proc/self'), os.path.exists(os.path.expanduser('~')))
try: socket.socketpair(30, socket.SOCK_SEQPACKET)  # AF_TIPC, which would load a module
except OSError as error: print(error.errno)
"""
    [outcome] = Code(options).sandbox.run(Request(program, [{"stdin": ""}]), 300.0)
    assert outcome.status == 0 and outcome.output
    first, second, third, refused = outcome.output.splitlines()
    assert first == "65534 65534 [] ['LC_CTYPE', 'PWD', 'PYTHONHASHSEED'] none"
    system = {"bin", "dev", "etc", "lib", "lib32", "lib64", "nix", "tmp", "usr"}
    beyond = set(second.split()) - system
    assert beyond <= {Path(os.sys.base_prefix).resolve().parts[1]}  # type: ignore[attr-defined]
    assert third == "False False"
    assert refused == "1" or "without a filter" in Code(options).sandbox.name  # EPERM


def test_verdicts_do_not_depend_on_the_order_of_a_set(options: CodeOptions):
    program = "print({str(n) for n in range(100)})"
    outcomes = {
        outcome.output
        for _ in range(2)
        for outcome in Code(options).sandbox.run(Request(program, [{"stdin": ""}]), 300.0)
    }
    assert len(outcomes) == 1
