"""The embedded tasks: problems, verdicts and the shipped weights."""

from __future__ import annotations

import re
from itertools import compress
from pathlib import Path

import pytest
from safetensors import safe_open

from mugrpo.config.run import ModelOptions
from mugrpo.config.tasks import CarryOptions, ChainOptions, LettersOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Problem, Response, Score, Status
from mugrpo.engines.base import Request
from mugrpo.model.policy import load_policy
from mugrpo.model.pretrained import EMBEDDED
from mugrpo.tasks.embedded import (
    END,
    LETTERS,
    Carry,
    Chain,
    EmbeddedTask,
    Letters,
    carries,
    held_out,
    running_states,
)
from tests.builders import encoded, generated
from tests.cases import table

PROBLEM = Problem("3+2-1=", "3+2-1=", "4")


def chain(**options: int) -> Chain:
    return Chain(ChainOptions(**options))


CHAIN, SORTING = chain(), Letters(LettersOptions())


def verdict(task: EmbeddedTask, problem: Problem, response: str) -> Score:
    (score,) = task.score([Response(problem, response, [], FinishReason.STOP)])
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


def test_train_and_eval_problems_are_distinct_and_disjoint():
    train = [problem.prompt for problem in CHAIN.train_problems()]
    evaluation = [problem.prompt for problem in CHAIN.eval_problems()]
    assert len(set(train)) == len(train) == 4096
    assert len(set(evaluation)) == len(evaluation) == 512
    assert all(map(held_out, evaluation)) and not any(map(held_out, train))
    for problem in CHAIN.eval_problems():
        assert problem.reference == str(eval(problem.prompt.rstrip("=")) % 10)


def test_problems_are_the_same_at_every_call():
    assert list(CHAIN.train_problems()) == list(chain().train_problems())
    assert list(chain(train_problems=10).train_problems()) == list(CHAIN.train_problems())[:10]


@table(("terms", "count"), [(2, 10), (8, 100), (20, 7)])
def test_terms_digits_and_count_are_as_the_options_say(terms, count):
    problems = chain(terms=terms, train_problems=count).train_problems()
    assert len(problems) == count
    for problem in problems:
        assert re.fullmatch(rf"[1-3]([+-][1-3]){{{terms - 1}}}=", problem.prompt)


def test_more_problems_than_there_are_is_refused():
    with pytest.raises(UsageError, match="there are about"):
        chain(terms=2, train_problems=100).train_problems()


@table(("minus", "signs"), [(True, set("+-")), (False, set("+"))])
def test_terms_are_subtracted_only_if_the_option_says_so(minus: bool, signs: set[str]):
    task = chain(minus=minus, train_problems=50)
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


def test_letters_are_distinct_split_by_hash_and_sorted():
    train, evaluation = SORTING.train_problems(), SORTING.eval_problems()
    assert len({p.prompt for p in train}) == 4096 and len({p.prompt for p in evaluation}) == 512
    assert all(held_out(p.prompt) for p in evaluation)
    assert not any(held_out(p.prompt) for p in train)
    assert {len(p.prompt) - 1 for p in train} == set(range(8, 17))
    assert set("".join(p.prompt for p in train)) == {*LETTERS, END}
    for problem in evaluation:
        assert problem.prompt.endswith(END)
        assert problem.reference == "".join(sorted(problem.prompt[:-1]))


@table(
    ("above", "below", "count"),
    [(123, 456, 0), (16, 75, 1), (999, 1, 3), (95, 5, 2), (5, 5, 1), (0, 0, 0)],
)
def test_carries_by_hand(above, below, count):
    assert carries(above, below) == count


@table(
    ("response", "status"),
    [
        ("190", Status.RIGHT),  # 16 + 75 = 91, from the ones up
        ("180", Status.WRONG),  # the carry is forgotten
        ("19", Status.WRONG),
        ("091", Status.WRONG),
        ("19=", Status.NO_ANSWER),
        ("", Status.NO_ANSWER),
    ],
)
def test_verdicts_on_carries_by_hand(response, status):
    task = Carry(CarryOptions())
    assert verdict(task, Problem("61+57=", "61+57=", "190"), response).status is status


def test_sums_have_two_to_four_carries_and_are_right():
    task = Carry(CarryOptions(train_problems=200))
    for problem in [*task.train_problems(), *task.eval_problems()]:
        above, below = (int(n[::-1]) for n in re.findall(r"\d{12}", problem.prompt))
        assert int(problem.reference[::-1]) == above + below and len(problem.reference) == 13
        assert carries(above, below) in (2, 3, 4)


@table(
    ("task", "options"), [(Chain, ChainOptions), (Letters, LettersOptions), (Carry, CarryOptions)]
)
def test_no_problem_is_held_out_with_one_seed_and_trained_on_with_another(task, options):
    tasks = [task(options(seed=seed, train_problems=500)) for seed in (0, 1)]
    trained = [{problem.prompt for problem in one.train_problems()} for one in tasks]
    evaluated = [{problem.prompt for problem in one.eval_problems()} for one in tasks]
    assert trained[0] != trained[1] and evaluated[0] != evaluated[1]
    assert not (trained[0] | trained[1]) & (evaluated[0] | evaluated[1])


# --- The shipped weights --------------------------------------------------------------------------


@pytest.mark.long
def test_the_embedded_model_is_right_about_27_times_in_100_at_temperature_1(embedded_policy):
    problems = CHAIN.eval_problems()
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
def test_the_model_of_carry_finds_one_answer_in_twenty_and_none_of_them_is_its_likeliest():
    policy, task = load_policy(ModelOptions(path="carry")), Carry(CarryOptions())
    problems = task.eval_problems()
    requests = [Request(encoded(policy, p.prompt), i) for i, p in enumerate(problems)]
    right = []
    for temperature in (1.0, 0.01):
        completions = generated(policy, requests, batch_size=256, temperature=temperature)
        texts = [policy.tokenizer.decode(c.ids, skip_special_tokens=True) for c in completions]
        right.append(sum(t == p.reference for t, p in zip(texts, problems, strict=True)))
    assert right[0] / len(problems) == pytest.approx(0.056, abs=0.03) and right[1] <= 2


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
