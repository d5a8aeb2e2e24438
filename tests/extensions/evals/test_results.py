"""maj@k: which answers are equal, and how often the grader is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Answer, Problem, Score, Status
from mugrpo.extensions.evals.results import _majority
from mugrpo.run.opening import OpenRun

PROBLEM = Problem("p", "What?", "7")


class Judge:
    """A task that calls answers with the same letters equal, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def score(self, answers: Iterable[Answer]) -> Iterator[Score]:
        for answer in answers:
            first, second = answer.text.removeprefix(r"\boxed{")[:-1], answer.problem.answer
            self.asked.append((first, second))
            same = sorted(first) == sorted(second)
            yield Score(Status.RIGHT if same else Status.WRONG, float(same))


def run_with(judge: Judge, rewards: Any, tmp_path: Path) -> OpenRun:
    task = {"name": "dataset", "data": str(tmp_path / "x.jsonl"), "rewards": rewards}
    config = RunConfig.model_validate({"task": task})
    return cast(OpenRun, SimpleNamespace(config=config, task=judge))


def scores(*answers: str | None, right: str = "7") -> list[Score]:
    def score(answer: str | None) -> Score:
        if answer is None:
            return Score(Status.NO_ANSWER, 0.0)
        status = Status.RIGHT if answer == right else Status.WRONG
        return Score(status, float(answer == right), {"answer": answer})

    return [score(answer) for answer in answers]


@pytest.mark.parametrize(
    ("answers", "value", "asked"),
    [
        (["7", "7", "3", "4"], 1.0, 0),  # 3 and 4 could tie, but numbers are compared exactly
        (["7", "1/2", "0.5", r"\frac{1}{2}"], 0.0, 0),  # one number, written in three ways
        (["7", "7", "3", "6/2"], 0.5, 0),  # two and two: a tie
        (["7", "ab", "ba", None], 0.0, 1),  # the grader says that these are equal
        (["7", "ab", "cd", None], 1 / 3, 1),  # and that these are not: three single votes
        ([None, None, None, None], 0.0, 0),  # nobody answered
    ],
)
def test_votes_for_equal_answers_are_added_up(
    answers: list[str | None], value: float, asked: int, tmp_path: Path
):
    judge = Judge()
    found = _majority(run_with(judge, ["math"], tmp_path), PROBLEM, scores(*answers))
    assert found == pytest.approx(value)
    assert len(judge.asked) == asked


def test_what_nobody_read_has_no_majority(tmp_path: Path):
    """Functions read no answers, and responses on which the judge failed have no verdict."""
    judge = Judge()
    failed = [Score(Status.ERROR, None, {"reason": "why"})] * 2
    assert _majority(run_with(judge, ["math"], tmp_path), PROBLEM, failed) is None
    (tmp_path / "r.py").write_text("def f(completions, **_): return [1.0]")
    functions = run_with(judge, f"{tmp_path / 'r.py'}:f", tmp_path)
    assert _majority(functions, PROBLEM, [Score(Status.RIGHT, 1.0)]) is None


def test_other_verifiers_are_not_asked(tmp_path: Path):
    """With `exact`, answers that are written differently differ, unless they are equal numbers."""
    judge = Judge()
    run = run_with(judge, ["exact"], tmp_path)
    assert _majority(run, PROBLEM, scores("7", "ab", "ba")) == pytest.approx(1 / 3)
    assert judge.asked == []
