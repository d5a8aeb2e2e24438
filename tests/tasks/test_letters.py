"""The letters task: problems, verdicts and the shipped weights."""

from __future__ import annotations

import pytest

from mugrpo.config.run import ModelOptions
from mugrpo.config.tasks import LettersOptions
from mugrpo.disk.records import Answer, FinishReason, Problem, Score, Status
from mugrpo.engines.base import Request
from mugrpo.model.policy import load_policy
from mugrpo.tasks.embedded import END, LETTERS, Letters, held_out
from tests.builders import encoded, generated
from tests.cases import table


def verdict(problem: Problem, response: str) -> Score:
    answers = [Answer(problem, response, [], FinishReason.STOP)]
    (score,) = Letters(LettersOptions()).score(answers)
    return score


@table(
    ("response", "status", "reward"),
    [
        ("abccd", Status.RIGHT, 1.0),
        ("abcdc", Status.WRONG, 0.0),
        ("abcd", Status.WRONG, 0.0),
        ("abccdd", Status.WRONG, 0.0),
        ("abc:d", Status.NO_ANSWER, 0.0),
        ("", Status.NO_ANSWER, 0.0),
    ],
)
def test_verdicts_by_hand(response, status, reward):
    score = verdict(Problem("dcabc:", "dcabc:", "abccd"), response)
    assert (score.status, score.reward) == (status, reward)


def test_answers_are_the_sorted_letters():
    letters = Letters(LettersOptions(train_problems=200, eval_problems=200))
    for problem in [*letters.train_problems(), *letters.eval_problems()]:
        assert problem.prompt.endswith(END)
        assert problem.answer == "".join(sorted(problem.prompt[:-1]))
        assert verdict(problem, problem.answer).reward == 1.0


def test_problems_are_distinct_split_by_hash_and_of_the_lengths_asked_for():
    letters = Letters(LettersOptions(shortest=5, longest=7, train_problems=300, eval_problems=100))
    train, evaluation = (
        [p.prompt for p in side] for side in (letters.train_problems(), letters.eval_problems())
    )
    assert len(set(train)) == 300 and len(set(evaluation)) == 100
    assert all(map(held_out, evaluation)) and not any(map(held_out, train))
    assert {len(p) - 1 for p in train} == {5, 6, 7}
    assert set("".join(train)) == {*LETTERS, END}
    assert train == [p.prompt for p in letters.train_problems()]


@pytest.mark.long
def test_the_embedded_model_is_right_about_a_quarter_of_the_time_at_temperature_1():
    policy = load_policy(ModelOptions(path="letters"))
    problems = Letters(LettersOptions()).eval_problems()
    requests = [Request(encoded(policy, p.prompt), i) for i, p in enumerate(problems)]
    completions = generated(policy, requests, batch_size=256)
    scores = [
        verdict(p, policy.tokenizer.decode(c.ids, skip_special_tokens=True))
        for p, c in zip(problems, completions, strict=True)
        if c.finish_reason is FinishReason.STOP
    ]
    accuracy = sum(score.reward for score in scores) / len(problems)
    assert accuracy == pytest.approx(0.26, abs=0.06)
    answered = [s.status in (Status.RIGHT, Status.WRONG) for s in scores]
    assert sum(answered) / len(problems) > 0.98
