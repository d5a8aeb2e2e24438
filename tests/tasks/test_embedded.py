"""The embedded tasks: problems, verdicts and the shipped weights."""

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


def chain(**options: int) -> Chain:
    return Chain(ChainOptions(**options))


CHAIN, SORTING, CARRY = chain(), Letters(LettersOptions()), Carry(CarryOptions())


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


OF_CHAIN = Problem("3+2-1=", "3+2-1=", "4")
OF_LETTERS = Problem("dcabc:", "dcabc:", "abccd")
OF_CARRY = Problem("61+57=", "61+57=", "190")  # 16 + 75 = 91, from the ones up


@table(
    ("task", "problem", "response", "status"),
    [
        (CHAIN, OF_CHAIN, "3+2=5,5-1=4", Status.RIGHT),
        (CHAIN, OF_CHAIN, "3+2=6,6-1=4", Status.RIGHT),  # only the final answer is judged
        (CHAIN, OF_CHAIN, "3+2=5,5-1=3", Status.WRONG),
        (CHAIN, OF_CHAIN, "3+2=4,5-1=", Status.NO_ANSWER),
        (CHAIN, OF_CHAIN, "3+2=5,4", Status.NO_ANSWER),
        (CHAIN, OF_CHAIN, "3+2=14", Status.NO_ANSWER),  # a state is one digit
        (CHAIN, OF_CHAIN, "", Status.NO_ANSWER),
        (SORTING, OF_LETTERS, "abccd", Status.RIGHT),
        (SORTING, OF_LETTERS, "abcdc", Status.WRONG),
        (SORTING, OF_LETTERS, "abcd", Status.WRONG),
        (SORTING, OF_LETTERS, "abccdd", Status.WRONG),
        (SORTING, OF_LETTERS, "abc:d", Status.NO_ANSWER),
        (SORTING, OF_LETTERS, "", Status.NO_ANSWER),
        (CARRY, OF_CARRY, "190", Status.RIGHT),
        (CARRY, OF_CARRY, "180", Status.WRONG),  # the carry is forgotten
        (CARRY, OF_CARRY, "19", Status.WRONG),
        (CARRY, OF_CARRY, "091", Status.WRONG),
        (CARRY, OF_CARRY, "19=", Status.NO_ANSWER),
        (CARRY, OF_CARRY, "", Status.NO_ANSWER),
    ],
)
def test_verdicts_by_hand(task, problem, response, status):
    score = verdict(task, problem, response)
    assert (score.status, score.reward) == (status, float(status is Status.RIGHT))


@table("task", [CHAIN, SORTING])
def test_train_and_eval_problems_are_distinct_and_disjoint(task):
    train = [problem.prompt for problem in task.train_problems()]
    evaluation = [problem.prompt for problem in task.eval_problems()]
    assert len(set(train)) == len(train) == 4096
    assert len(set(evaluation)) == len(evaluation) == 512
    assert all(map(held_out, evaluation)) and not any(map(held_out, train))


def test_problems_are_the_same_at_every_call_and_no_more_than_there_are():
    assert list(CHAIN.train_problems()) == list(chain().train_problems())
    assert list(chain(train_problems=10).train_problems()) == list(CHAIN.train_problems())[:10]
    with pytest.raises(UsageError, match="there are about"):
        chain(terms=2, train_problems=100).train_problems()


@table(("terms", "count", "signs"), [(2, 10, "+-"), (8, 100, "+-"), (20, 7, "+-"), (8, 50, "+")])
def test_terms_signs_and_count_are_as_the_options_say_and_references_are_results(
    terms, count, signs
):
    problems = chain(terms=terms, train_problems=count, minus="-" in signs).train_problems()
    assert len(problems) == count
    assert set(re.findall("[+-]", "".join(problem.prompt for problem in problems))) == {*signs}
    for problem in problems:
        assert re.fullmatch(rf"[1-3]([+-][1-3]){{{terms - 1}}}=", problem.prompt)
        assert problem.reference == str(eval(problem.prompt.rstrip("=")) % 10)


def test_letters_are_sorted_and_sums_are_right_with_two_to_four_carries():
    train = SORTING.train_problems()
    assert {len(p.prompt) - 1 for p in train} == set(range(8, 17))
    assert set("".join(p.prompt for p in train)) == {*LETTERS, END}
    for problem in SORTING.eval_problems():
        assert problem.prompt.endswith(END)
        assert problem.reference == "".join(sorted(problem.prompt[:-1]))
    task = Carry(CarryOptions(train_problems=200))
    for problem in [*task.train_problems(), *task.eval_problems()]:
        above, below = (int(n[::-1]) for n in re.findall(r"\d{12}", problem.prompt))
        assert int(problem.reference[::-1]) == above + below and len(problem.reference) == 13
        assert carries(above, below) in (2, 3, 4)


@table(
    ("above", "below", "count"),
    [(123, 456, 0), (16, 75, 1), (999, 1, 3), (95, 5, 2), (5, 5, 1), (0, 0, 0)],
)
def test_carries_by_hand(above, below, count):
    assert carries(above, below) == count


@table(
    ("task", "options"), [(Chain, ChainOptions), (Letters, LettersOptions), (Carry, CarryOptions)]
)
def test_no_problem_is_held_out_with_one_seed_and_trained_on_with_another(task, options):
    tasks = [task(options(seed=seed, train_problems=500)) for seed in (0, 1)]
    trained = [{problem.prompt for problem in one.train_problems()} for one in tasks]
    evaluated = [{problem.prompt for problem in one.eval_problems()} for one in tasks]
    assert trained[0] != trained[1] and evaluated[0] != evaluated[1]
    assert not (trained[0] | trained[1]) & (evaluated[0] | evaluated[1])


def said(model: str, task: EmbeddedTask, temperature: float = 1.0) -> tuple[list[str], list[Score]]:
    """Return what a model says to the held-out problems, and the scores of what it ended."""
    policy, problems = load_policy(ModelOptions(path=model)), task.eval_problems()
    requests = [Request(encoded(policy, p.prompt), i) for i, p in enumerate(problems)]
    completions = generated(policy, requests, batch_size=256, temperature=temperature)
    texts = [policy.tokenizer.decode(c.ids, skip_special_tokens=True) for c in completions]
    ended = [c.finish_reason is FinishReason.STOP for c in completions]
    given = compress(zip(problems, texts, strict=True), ended)
    return texts, [verdict(task, problem, text) for problem, text in given]


# Accuracies as documented. Of the first, three standard deviations: 3 x sqrt(0.27 x 0.73 / 512).
@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "task", "accuracy", "within"),
    [("chain", CHAIN, 0.27, 0.059), ("letters", SORTING, 0.26, 0.06)],
)
def test_a_model_is_right_in_a_quarter_and_knows_the_form(model, task, accuracy, within):
    texts, scores = said(model, task)
    assert len(texts) == 512
    assert sum(s.reward for s in scores) / 512 == pytest.approx(accuracy, abs=within)
    assert sum(s.status in (Status.RIGHT, Status.WRONG) for s in scores) / 512 > 0.98
    if task is CHAIN:  # nearly every response has the right length
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
    answers = [problem.reference for problem in CARRY.eval_problems()]
    texts = [said("carry", CARRY, temperature)[0] for temperature in (1.0, 0.01)]
    sampled, likeliest = (sum(map(str.__eq__, each, answers)) for each in texts)
    assert sampled / len(answers) == pytest.approx(0.056, abs=0.03) and likeliest <= 2
