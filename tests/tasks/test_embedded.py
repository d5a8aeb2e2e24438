"""The embedded tasks: problems, verdicts and the shipped weights."""

from __future__ import annotations

import re
from itertools import compress
from pathlib import Path

import pytest
from safetensors import safe_open

from mugrpo.config.run import ModelOptions
from mugrpo.config.tasks import ChainOptions, LettersOptions
from mugrpo.disk.records import Answer, FinishReason, Problem, Score, Status
from mugrpo.engines.base import Request
from mugrpo.model.policy import load_policy
from mugrpo.model.pretrained import EMBEDDED
from mugrpo.tasks.embedded import (
    END,
    LETTERS,
    Chain,
    EmbeddedTask,
    Letters,
    held_out,
    running_states,
)
from tests.builders import encoded, generated
from tests.cases import table

PROBLEM = Problem("3+2-1=", "3+2-1=", "4")
CHAIN, SORTING = Chain(ChainOptions()), Letters(LettersOptions())


def verdict(task: EmbeddedTask, problem: Problem, response: str) -> Score:
    (score,) = task.score([Answer(problem, response, [], FinishReason.STOP)])
    return score


@table(
    ("prompt", "states"),
    [
        ("3+2-1=", [3, 5, 4]),
        ("7=", [7]),
        ("1-3-2=", [1, 8, 6]),  # 1 - 3 = -2, and -2 mod 10 is 8
        ("9+9+3=", [9, 8, 1]),
        ("1-1-1+1=", [1, 0, 9, 0]),
    ],
)
def test_running_states_by_hand(prompt, states):
    assert running_states(prompt) == states


@table(
    ("response", "status", "reward"),
    [
        ("3+2=5,5-1=4", Status.RIGHT, 1.0),
        ("3+2=6,6-1=4", Status.RIGHT, 1.0),  # only the final answer is judged
        ("3+2=5,5-1=3", Status.WRONG, 0.0),
        ("3+2=4,5-1=", Status.NO_ANSWER, 0.0),
        ("3+2=5,4", Status.NO_ANSWER, 0.0),
        ("3+2=14", Status.NO_ANSWER, 0.0),  # a state is one digit
        ("", Status.NO_ANSWER, 0.0),
    ],
)
def test_verdicts_by_hand(response, status, reward):
    score = verdict(CHAIN, PROBLEM, response)
    assert (score.status, score.reward) == (status, reward)


def test_answers_are_the_sum_modulo_ten():
    chain = Chain(ChainOptions(terms=6, max_digit=9, train_problems=50, eval_problems=50))
    for problem in [*chain.train_problems(), *chain.eval_problems()]:
        assert problem.answer == str(eval(problem.prompt.rstrip("=")) % 10)


def test_train_and_eval_problems_are_distinct_and_disjoint():
    chain = Chain(ChainOptions())
    train = [problem.prompt for problem in chain.train_problems()]
    evaluation = [problem.prompt for problem in chain.eval_problems()]
    assert len(set(train)) == len(train) == 4096
    assert len(set(evaluation)) == len(evaluation) == 512
    assert not set(train) & set(evaluation)
    assert all(map(held_out, evaluation)) and not any(map(held_out, train))
    ids = [p.id for p in (*chain.train_problems(), *chain.eval_problems())]
    assert len(set(ids)) == len(ids)


def test_no_seed_trains_on_what_another_holds_out():
    train = {p.prompt for s in range(3) for p in Chain(ChainOptions(seed=s)).train_problems()}
    evaluation = {p.prompt for s in range(3) for p in Chain(ChainOptions(seed=s)).eval_problems()}
    assert not train & evaluation


def test_problems_are_the_same_at_every_call_and_follow_from_the_seed():
    first, again = Chain(ChainOptions()), Chain(ChainOptions())
    assert list(first.train_problems()) == list(again.train_problems())
    assert list(first.train_problems()) == list(first.train_problems())
    assert list(first.eval_problems()) == list(again.eval_problems())
    assert list(first.train_problems()) != list(Chain(ChainOptions(seed=1)).train_problems())
    few = Chain(ChainOptions(train_problems=10)).train_problems()
    assert list(few) == list(first.train_problems())[:10]


@table(("terms", "max_digit", "count"), [(2, 9, 60), (5, 1, 12), (8, 3, 100), (20, 2, 7)])
def test_terms_digits_and_count_are_as_the_options_say(terms, max_digit, count):
    options = ChainOptions(terms=terms, max_digit=max_digit, train_problems=count, eval_problems=1)
    problems = Chain(options).train_problems()
    assert len(problems) == count
    digits = {int(d) for p in problems for d in re.findall(r"\d", p.prompt)}
    assert digits == set(range(1, max_digit + 1))
    for problem in problems:
        assert re.fullmatch(rf"\d([+-]\d){{{terms - 1}}}=", problem.prompt)


@table(("minus", "signs"), [(True, set("+-")), (False, set("+"))])
def test_terms_are_subtracted_only_if_the_option_says_so(minus: bool, signs: set[str]):
    task = Chain(ChainOptions(minus=minus, train_problems=50))
    prompts = "".join(problem.prompt for problem in task.train_problems())
    assert set(re.findall(r"[+-]", prompts)) == signs


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
def test_verdicts_on_letters_by_hand(response, status, reward):
    score = verdict(SORTING, Problem("dcabc:", "dcabc:", "abccd"), response)
    assert (score.status, score.reward) == (status, reward)


def test_answers_are_the_sorted_letters():
    letters = Letters(LettersOptions(train_problems=200, eval_problems=200))
    for problem in [*letters.train_problems(), *letters.eval_problems()]:
        assert problem.prompt.endswith(END)
        assert problem.answer == "".join(sorted(problem.prompt[:-1]))
        assert verdict(SORTING, problem, problem.answer).reward == 1.0


def test_letters_are_distinct_split_by_hash_and_of_the_lengths_asked_for():
    letters = Letters(LettersOptions(shortest=5, longest=7, train_problems=300, eval_problems=100))
    train, evaluation = (
        [p.prompt for p in side] for side in (letters.train_problems(), letters.eval_problems())
    )
    assert len(set(train)) == 300 and len(set(evaluation)) == 100
    assert all(map(held_out, evaluation)) and not any(map(held_out, train))
    assert {len(p) - 1 for p in train} == {5, 6, 7}
    assert set("".join(train)) == {*LETTERS, END}
    assert train == [p.prompt for p in letters.train_problems()]


# --- The shipped weights --------------------------------------------------------------------------


def test_the_embedded_model_is_right_about_27_times_in_100_at_temperature_1(embedded_policy):
    chain = Chain(ChainOptions())
    problems = chain.eval_problems()
    requests = [Request(encoded(embedded_policy, p.prompt), i) for i, p in enumerate(problems)]
    completions = generated(embedded_policy, requests, batch_size=256)
    texts = [embedded_policy.tokenizer.decode(c.ids, skip_special_tokens=True) for c in completions]
    stopped = [c.finish_reason is FinishReason.STOP for c in completions]
    scores = [
        verdict(CHAIN, p, text) for p, text in compress(zip(problems, texts, strict=True), stopped)
    ]
    accuracy = sum(score.reward for score in scores) / len(problems)
    assert len(problems) == 512
    # 0.27 as documented, within three standard deviations: 3 x sqrt(0.27 x 0.73 / 512) = 0.059
    assert accuracy == pytest.approx(0.27, abs=0.059)
    # It knows the form: nearly every response is an answered chain of the right length.
    answered = [s.status in (Status.RIGHT, Status.WRONG) for s in scores]
    assert sum(answered) / 512 > 0.98
    assert sum(len(text) == 41 for text in texts) / 512 > 0.95


def test_the_embedded_model_is_small_and_holds_no_pickle():
    files = list(Path(EMBEDDED["chain"]).iterdir())
    assert sum(file.stat().st_size for file in files) < 4_000_000
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    with safe_open(EMBEDDED["chain"] / "model.safetensors", "pt") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    parameters = sum(shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in shapes)
    assert 400_000 <= parameters <= 800_000


@pytest.mark.long
def test_the_model_of_letters_is_right_about_a_quarter_of_the_time_at_temperature_1():
    policy = load_policy(ModelOptions(path="letters"))
    problems = SORTING.eval_problems()
    requests = [Request(encoded(policy, p.prompt), i) for i, p in enumerate(problems)]
    completions = generated(policy, requests, batch_size=256)
    scores = [
        verdict(SORTING, p, policy.tokenizer.decode(c.ids, skip_special_tokens=True))
        for p, c in zip(problems, completions, strict=True)
        if c.finish_reason is FinishReason.STOP
    ]
    accuracy = sum(score.reward for score in scores) / len(problems)
    assert accuracy == pytest.approx(0.26, abs=0.06)
    answered = [s.status in (Status.RIGHT, Status.WRONG) for s in scores]
    assert sum(answered) / len(problems) > 0.98
