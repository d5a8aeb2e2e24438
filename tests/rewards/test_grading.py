"""Scores of answers: functions as TRL calls them, several rewards, and every way to fail."""

import datetime
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mugrpo.config.base import RewardOption, WorkerOptions
from mugrpo.config.rewards import (
    ExactOptions,
    FunctionOptions,
    MathOptions,
    NumericOptions,
    RegexOptions,
)
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.records import (
    FinishReason,
    GroupKey,
    Problem,
    Response,
    Score,
    Status,
    TrainerState,
)
from mugrpo.extensions.turns import EnvironmentReward
from mugrpo.rewards.grading import Grader
from mugrpo.rewards.math.response import LONGEST_ANSWER, LONGEST_TEXT
from tests.cases import table

FILE = Path(__file__).parent / "misbehaving.py"
ONE = WorkerOptions(count=1)
UNREADABLE = (
    "no verifier can read the reference answer '$': it is empty, or has more than 1000 characters"
)


def function(
    name: str, weight: float = 1.0, file: Path = FILE, verdict: bool = False
) -> FunctionOptions:
    return FunctionOptions(function=f"{file}:{name}", weight=weight, verdict=verdict)


def answer(text: str, reference: str = "12", **columns: object) -> Response:
    problem = Problem("p1", "What is 3+9?", reference, columns)
    return Response(problem, text, [5, 6, 0], FinishReason.STOP)


@table(
    ("own", "status", "reward"),
    [
        (1.0, Status.RIGHT, 1.0 + 2 * 1.0),
        (0.75, Status.WRONG, 1.0 + 2 * 0.75),
        (None, Status.GRADED, 1.0),  # the function's alone, and that is no verdict
    ],
)
def test_the_environments_reward_is_summed_with_a_functions(own, status, reward):
    rewards = (EnvironmentReward(weight=2.0, verdict=True), function("length"))
    found = kept(rewards, ONE).scores([replace(answer("x"), environment_reward=own)])
    (score,) = found
    assert (score.status, score.reward) == (status, reward)
    assert score.parts == {"environment": own, "length": 1.0}


GRADERS: dict[tuple[object, ...], Grader] = {}


def kept(rewards: tuple[RewardOption, ...], workers: WorkerOptions) -> Grader:
    options = (rewards, workers)
    if options not in GRADERS:
        GRADERS[options] = Grader(rewards, workers)
    return GRADERS[options]


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    """Close the graders. Tests with the same options share one, and must not affect each other."""
    yield
    for grader in GRADERS.values():
        grader.close()


def scores(
    rewards: tuple[RewardOption, ...], *texts: str, workers: WorkerOptions = ONE
) -> list[Score]:
    return list(kept(rewards, workers).scores(map(answer, texts)))


def test_one_verifier():
    assert scores((MathOptions(weight=2.0),), r"\boxed{12}", r"\boxed{x=7}", "who knows") == [
        Score(Status.RIGHT, 2.0, {"math": 1.0, "answer": "12"}),
        Score(Status.WRONG, 0.0, {"math": 0.0, "answer": "x=7"}),
        Score(Status.NO_ANSWER, 0.0, {"math": 0.0}),
    ]


def test_the_sum_is_weighted_and_the_first_verifier_gives_the_status():
    rewards = (
        function("half", weight=0.5),
        NumericOptions(weight=2.0),
        ExactOptions(weight=-1.0),
        RegexOptions(pattern=r"is (\d+)"),
    )
    # 0.5 x 0.5 + 2 x 1 - 1 x 0 + 1 x 0
    [first, second] = scores(rewards, "half of 24 is 7 or 12", "12")
    parts = {"half": 0.5, "numeric": 1.0, "exact": 0.0, "regex": 0.0, "answer": "12"}
    parts |= {"answer/exact": "half of 24 is 7 or 12", "answer/regex": "7"}
    assert first == Score(Status.RIGHT, 2.25, parts)
    # `half` returns None: 2 x 1 - 1 x 1 + 1 x 0
    parts = {"half": None, "numeric": 1.0, "exact": 1.0, "regex": 0.0, "answer": "12"}
    parts |= {"answer/exact": "12"}
    assert second == Score(Status.RIGHT, 1.0, parts)


def test_both_readings_are_kept_and_weight_0_changes_nothing_else():
    """The part "answer" never is the answer of a second verifier, even if the first read none."""
    texts = (r"\boxed{3+9}", "Of 12, it is 3", "who knows")
    both = scores((ExactOptions(), NumericOptions(weight=0.0)), *texts)
    alone = scores((ExactOptions(),), *texts)
    assert [(s.status, s.reward) for s in both] == [(s.status, s.reward) for s in alone]
    [none, number] = scores((NumericOptions(), ExactOptions(weight=0.0)), "x + 3", "12")
    assert none == Score(Status.NO_ANSWER, 0.0, {**none.parts, "numeric": 0.0})
    assert "answer" not in none.parts and none.parts["answer/exact"] == "x + 3"
    assert number.parts == {"numeric": 1.0, "exact": 1.0, "answer": "12", "answer/exact": "12"}


def test_references_that_are_not_equal_to_themselves_are_found():
    with closing(Grader((ExactOptions(), MathOptions(weight=0.0)), ONE)) as grader:
        assert grader.unreadable(["12", "$"]) == {"$": f"math: ValueError: {UNREADABLE}"}


@table(
    ("named", "statuses"),
    [
        ((False, False), (Status.GRADED, Status.GRADED)),  # 3 and 0.75 are rewards, no verdicts
        ((False, True), (Status.RIGHT, Status.RIGHT)),  # lengths of 8 and 3
        ((True, False), (Status.WRONG, Status.GRADED)),  # 0.5 and None
    ],
)
def test_a_sum_is_no_verdict_and_a_function_is_one_if_it_is_named(named, statuses):
    half, length = named
    rewards = (
        function("half", weight=2.0, verdict=half),
        function("length", weight=0.25, verdict=length),
    )
    assert scores(rewards, "halfhalf", "abc") == [
        Score(statuses[0], 3.0, {"half": 0.5, "length": 8.0}),
        Score(statuses[1], 0.75, {"half": None, "length": 3.0}),
    ]


COMPARES = """
def majority(completions, **_):
    ends = [text[-1] for text in completions]
    return [float(end == max(ends, key=ends.count)) for end in ends]


def shortest(completions, prompts, log_metric, **_):
    log_metric("calls", len(completions))
    lengths = [len(text) for text in completions]
    return [0.5 * (n == min(lengths)) - 0.5 * (n == max(lengths)) for n in lengths]
"""


@table(
    ("batch_size", "calls"), [(1, [4, 4, 2]), (3, [4, 4, 2]), (7, [4, 6]), (8, [8, 2]), (64, [10])]
)
def test_functions_get_whole_groups_in_order(batch_size, calls, tmp_path):
    """Two draws of a problem and one of another, with four, four and two responses.

    The number of responses in a call is what the function logs.
    """
    file = tmp_path / "compares.py"
    file.write_text(COMPARES)
    options = (function("majority", file=file), function("shortest", file=file))
    workers = WorkerOptions(count=2, batch_size=batch_size)
    groups = (["1", "22", "1", "333"], ["4", "5", "65", "4"], ["7", "88"])
    draws = (GroupKey("p1", 0), GroupKey("p1", 1), GroupKey("p2", 0))
    asked = (
        replace(answer(t), group=d) for d, some in zip(draws, groups, strict=True) for t in some
    )
    with closing(Grader(options, workers)) as grader:
        found = list(grader.scores(asked))
    logged = [score.logged.get("logged/calls") for score in found]
    assert [int(some[0]) for some in logged if some] == calls
    if calls == [4, 4, 2]:
        # of 1 2 1 3 it is 1, of 4 5 5 4 the first, 4; of 7 8, 7; shortest and longest by hand
        given = [score.reward for score in found]
        assert given == [*(1.5, 0.0, 1.5, -0.5), *(1.5, 0.5, -0.5, 1.5), *(1.5, -0.5)]


def test_built_in_rewards_get_single_responses_whatever_the_group():
    def asked(group: GroupKey | None) -> Iterator[Response]:
        return (replace(answer(text), group=group) for text in ("12", "13", "14"))

    grader = kept((ExactOptions(),), ONE)
    assert [len(call) for call in grader._calls(asked(GroupKey("p1", 0)))] == [1, 1, 1]
    functions = kept((function("length"),), ONE)  # and so do functions, of answers of no group
    assert [len(call) for call in functions._calls(asked(None))] == [1, 1, 1]


def test_a_function_that_is_named_decides_before_a_built_in_judge():
    rewards = (ExactOptions(), function("length", weight=0.0, verdict=True))
    found = [(s.status, s.reward) for s in scores(rewards, "12", "13", "")]
    assert found == [(Status.RIGHT, 1.0), (Status.RIGHT, 0.0), (Status.WRONG, 0.0)]


@table(
    ("name", "reward"), [("later", 0.3), ("an_object", 0.25), ("as_numpy", 0.5), ("length", 3.0)]
)
def test_forms_of_functions(name, reward):
    [score] = scores((function(name),), "abc")
    assert score.reward == reward


WHAT = """
def what(prompts, completions, completion_ids, level, answer, **rest):
    assert prompts == PROMPTS, prompts
    assert completions == COMPLETIONS, completions
    assert completion_ids == [[5, 6, 0], [5, 6, 0]], completion_ids
    assert level == ["easy", None], level
    assert answer == ["12", "13"], answer
    assert rest.pop("when") == ["2026-01-02"] * 2, rest
    assert callable(rest.pop("log_extra")) and callable(rest.pop("log_metric"))
    state = rest.pop("trainer_state")
    assert (state.global_step, state.max_steps, state.stage) == (16, 48, 1)
    assert rest == {}, rest
    return [1, 2.5]
"""
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+9?"}]


@table(
    ("prompt", "prompts", "completions"),
    [
        ("3+9?", ["3+9?"] * 2, ["a\ud800", "\x00b"]),
        (
            tuple(TURNS),
            [TURNS] * 2,
            [[{"role": "assistant", "content": text}] for text in ("a\ud800", "\x00b")],
        ),
    ],
)
def test_functions_are_called_as_trl_calls_them(prompt, prompts, completions, tmp_path):
    file = tmp_path / "math.py"  # the name of a module that others need
    file.write_text(f"PROMPTS = {prompts!r}\nCOMPLETIONS = {completions!r}\n{WHAT}")
    columns = {"when": datetime.date(2026, 1, 2), "prompt": "dropped", "completion": "dropped"}
    problems = [
        Problem("p1", prompt, "12", {**columns, "level": "easy"}),
        Problem("p2", prompt, "13", columns),
    ]
    answers = [
        Response(problem, text, [5, 6, 0], FinishReason.STOP, TrainerState(16, 48, 1))
        for problem, text in zip(problems, ("a\ud800", "\x00b"), strict=True)
    ]
    pairs = WorkerOptions(count=1, batch_size=2)
    with closing(Grader((function("what", file=file),), pairs)) as grader:
        found = [(s.reward, s.parts) for s in grader.scores(answers)]
        assert found == [(1.0, {"what": 1.0}), (2.5, {"what": 2.5})]


def test_functions_get_the_messages_of_all_turns(tmp_path):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 3, "b": 9}}}
    said = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "12"},
        {"role": "assistant", "content": "It is 12."},
    ]
    file = tmp_path / "calls.py"
    file.write_text(f"def same(completions): return [float(c == {said!r}) for c in completions]")
    problem = Problem("p1", tuple(TURNS), "12")
    said_it = Response(problem, "It is 12.", [5], FinishReason.STOP, messages=said)
    [score] = kept((function("same", file=file),), ONE).scores([said_it])
    assert score.reward == 1.0


def test_a_file_imports_its_neighbors_and_a_module_is_found_here(tmp_path, monkeypatch):
    (tmp_path / "neighbor.py").write_text("VALUE = 0.125\n")
    (tmp_path / "mine.py").write_text(
        "from neighbor import VALUE\ndef value(completions, **_): return [VALUE]\n"
    )
    [score] = scores((function("value", file=tmp_path / "mine.py"),), "a")
    assert score.reward == 0.125
    monkeypatch.chdir(tmp_path)
    [score] = scores((FunctionOptions(function="mine:value"),), "a")
    assert score.reward == 0.125


# Rewards that fail: test_pool has more of them.


@table(
    ("text", "status", "reason"),
    [
        ("raise boom", Status.ERROR, "obeys: ValueError: boom"),
        ("signal 9", Status.ERROR, "the worker died (SIGKILL)"),
        ("loop", Status.UNFINISHED, "not finished after 1 seconds of computing"),
        ("sleep 60 1", Status.UNFINISHED, "not finished within 3 seconds"),
        ("bomb", Status.UNFINISHED, "obeys: MemoryError"),
        ("deep", Status.UNFINISHED, "obeys: RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_a_reward_that_fails_has_no_reward_and_one_that_cannot_finish_has_0(text, status, reason):
    rewards = (ExactOptions(), function("obeys"))
    seconds = {"sleep 60 1": 0.25, "loop": 1.0}.get(text, 10.0)  # a bomb's pages are computing, too
    workers = WorkerOptions(count=1, timeout=seconds, memory_mb=512)
    assert scores(rewards, text, "12", workers=workers) == [
        Score(status, 0.0 if status is Status.UNFINISHED else None, {"reason": reason}),
        Score(Status.RIGHT, 13.0, {"exact": 1.0, "obeys": 12.0, "answer": "12"}),
    ]


@table(
    ("text", "sentence"),
    [
        ("[float('nan')]", "`returns` returned nan as reward 0 of 1 (problem p1); a reward must"),
        ("['1']", "`returns` returned '1' as reward 0 of 1 (problem p1)"),
        ("[1e308]", "`returns` returned 1e+308 as reward 0 of 1 (problem p1); a reward must be a"),
        ("[]", "`returns` returned [], not a list of 1 rewards"),
        ("[1] * 7", "not a list of 1 rewards"),
        ("1.0", "`returns` returned 1.0, not a list of 1 rewards"),
        (("[1] * 7", *"1234567"), "not a list of 8 rewards"),  # the index is that in the batch
        (("[1, None, float('nan')]", "b", "c"), "returned nan as reward 2 of 3"),
    ],
)
def test_a_function_that_breaks_its_contract_stops_the_run(text, sentence):
    texts, workers = [text] if isinstance(text, str) else text, WorkerOptions(count=1, batch_size=8)
    with pytest.raises(RunStopped) as stopped:
        scores((function("returns"),), *texts, workers=workers)
    assert sentence in str(stopped.value)


def nothing_taken():
    raise AssertionError("an answer was taken")
    yield


@table(
    ("content", "name", "sentence"),
    [
        ("f = 3", "f", "rewards.py has no function f"),
        ("def f(:", "f", "rewards.py cannot be imported: SyntaxError: invalid syntax"),
        ("import os; os._exit(4)", "f", "the reward died while it was loading (status 4)"),
    ],
)
def test_what_cannot_be_loaded_is_refused_before_any_answer(content, name, sentence, tmp_path):
    (tmp_path / "rewards.py").write_text(content)
    grader = Grader((function(name, file=tmp_path / "rewards.py"),), ONE)
    with pytest.raises((UsageError, RunStopped)) as refused:
        list(grader.scores(nothing_taken()))
    assert sentence in str(refused.value)
    with pytest.raises((UsageError, RunStopped)):
        grader.start()
    assert not grader._pool._workers


def boxed(content: str) -> str:
    return rf"The answer is \boxed{{{content}}}."


# Odd answers, on which a verifier could be fooled or fail. None of them is 12, and none is heavy:
# stand-ins of judges that hang or fill the memory say so (misbehaving.py).
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


def test_hostile_answers_all_get_a_verdict_and_none_is_right():
    with closing(Grader((MathOptions(),), WorkerOptions(count=2))) as grader:
        grader.start()
        scored = grader.scores(map(answer, HOSTILE.values()))
        verdicts = dict(zip(HOSTILE, scored, strict=True))
    assert {score.status for score in verdicts.values()} == {Status.WRONG, Status.NO_ANSWER}
    for name in ("a large power", "a large factorial"):  # refused, not tried
        assert verdicts[name].status is Status.WRONG
    for name in ("a long number", "a long text"):  # longer than an answer may be
        assert verdicts[name].status is Status.NO_ANSWER


def test_a_file_brings_no_others_in_the_place_of_named_modules(tmp_path, monkeypatch):
    """Nor does it later, when something else imports a module for the first time."""
    monkeypatch.chdir(tmp_path)
    other = "raise SystemExit('not the one that is named')\n"
    for name in ("plistlib", "here", "sched"):
        (tmp_path / "sub").mkdir(exist_ok=True)
        (tmp_path / "sub" / f"{name}.py").write_text(other)
    judges = "def {}(completions):\n    import {}\n    return [1.0]\n"
    (tmp_path / "sub" / "ok.py").write_text(judges.format("first", "sched, beside"))
    (tmp_path / "sub" / "beside.py").write_text("")
    (tmp_path / "here.py").write_text(judges.format("second", "this"))
    rewards = ("sub/ok.py:first", "plistlib:loads", "here:second")
    options = tuple(FunctionOptions(function=name) for name in rewards)
    with closing(Grader(options, ONE)) as grader:
        grader.start()
    with closing(Grader((options[0], options[2]), ONE)) as grader:
        assert [score.reward for score in grader.scores([answer("a")])] == [2.0]


def test_a_worker_loads_nothing_heavy_that_it_does_not_need():
    heavy = {"torch", "transformers", "pyarrow", "sympy"}
    code = f"import sys, mugrpo.rewards.worker; print({heavy} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "set()\n"
