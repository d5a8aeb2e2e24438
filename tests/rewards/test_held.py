"""Reward functions that only this process has judge here, and as workers would."""

from __future__ import annotations

import os

import pytest

from mugrpo.config.rewards import FunctionOptions, NumericOptions, RewardOption, WorkerOptions
from mugrpo.disk.errors import BrokenReward, UsageError
from mugrpo.disk.records import Answer, FinishReason, Problem, Score, Status
from mugrpo.rewards.grading import Grader

NAME = "<script>:judge"
JUDGE = FunctionOptions(function=NAME)


def scores(function: object, *texts: str, more: tuple[RewardOption, ...] = ()) -> list[Score]:
    problem = Problem("p", "3+9?", "12", {"unit": "kg"})
    answers = [Answer(problem, text, [5, 0], FinishReason.STOP) for text in texts]
    workers = WorkerOptions(batch_size=4)
    with Grader((JUDGE, *more), workers, held={NAME: function}) as grader:  # type: ignore[dict-item]
        return list(grader.scores(answers))


def test_a_closure_judges_in_this_process_in_calls_of_a_batch():
    calls: list[tuple[int, list[str], list[str]]] = []

    def judge(completions, unit, **_):
        calls.append((os.getpid(), completions, unit))
        return [len(text) / 2 for text in completions]

    found = scores(judge, "12", "1", "", "12", "2", more=(NumericOptions(weight=3.0),))
    assert calls == [
        (os.getpid(), ["12", "1", "", "12"], ["kg"] * 4),
        (os.getpid(), ["2"], ["kg"]),
    ]
    # half the length, and 3 for the number 12; the status is the verifier's
    assert [score.reward for score in found] == [4.0, 0.5, 0.0, 4.0, 0.5]
    assert [score.status for score in found][:3] == [Status.RIGHT, Status.WRONG, Status.NO_ANSWER]


def test_async_functions_and_none():
    async def judge(completions, **_):
        return [None if text == "?" else 1.0 for text in completions]

    first, second = scores(judge, "12", "?")
    assert (first.reward, second.status) == (1.0, Status.SKIPPED)


def test_if_a_call_fails_each_completion_is_tried_alone():
    def judge(completions, **_):
        return [1 / float(text) for text in completions]

    found = scores(judge, "2", "0", "4")
    assert [score.reward for score in found] == [0.5, None, 0.25]
    assert found[1].status is Status.ERROR
    assert found[1].parts["reason"] == "judge: ZeroDivisionError: float division by zero"


def test_a_broken_contract_stops_at_once():
    with pytest.raises(BrokenReward, match="got 1 rewards for 2 completions from `judge`"):
        scores(lambda completions, **_: [1.0], "1", "2")


def test_another_process_does_not_have_the_function():
    with pytest.raises(UsageError, match="exists only in the script that began this run"):
        Grader((JUDGE,), WorkerOptions()).start()
