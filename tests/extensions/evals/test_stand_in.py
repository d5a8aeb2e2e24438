"""A local file in the place of a suite's data set, and the prompts that come of it."""

from __future__ import annotations

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.extensions.evals.options import Suite, load_suites
from mugrpo.extensions.evals.suite import with_data
from mugrpo.tasks import make_task
from mugrpo.tasks.dataset import stable_hash
from tests.cases import table
from tests.tasks.builders import row, task

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def suite(name: str) -> Suite:
    return load_suites(name)[0]


def problems(name: str, file: str) -> list[Problem]:
    return make_task(with_data(suite(name), file).options.task).every_problem()


def refusal(name: str, file: str) -> str:
    with pytest.raises(UsageError) as refused:
        problems(name, file)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# ---- prompts by hand ----


def test_a_problem_of_gsm8k_as_the_model_reads_it(jsonl):
    file = jsonl({"question": "3 cats and 2 dogs?", "answer": "3+2=<<3+2=5>>5\n#### 5"})
    [problem] = problems("gsm8k", file)
    assert (problem.prompt, problem.reference) == ("3 cats and 2 dogs?" + BOXED, "5")


def test_a_problem_of_math500_as_the_model_reads_it(jsonl):
    file = jsonl({"problem": "Find $x$ in {1}.", "answer": r"\frac{1}{2}", "unique_id": "a/1.json"})
    assert problems("math500", file) == [
        Problem(
            "a/1.json",
            "Find $x$ in {1}." + BOXED,
            r"\frac{1}{2}",
            {"answer": r"\frac{1}{2}", "unique_id": "a/1.json"},
        )
    ]


# ---- columns ----


@table(
    ("name", "columns", "chosen"),
    [  # prompt, answer and id column
        ("svamp", ["ID", "Body", "question_concat", "Answer"], ("question_concat", "Answer", "ID")),
        ("svamp", ["id", "problem", "answer"], ("problem", "answer", "id")),
        ("aime26", ["problem_idx", "problem", "answer"], ("problem", "answer", "problem_idx")),
        ("aime24", ["prompt", "answer", "source"], ("prompt", "answer", None)),
        ("math500", ["question", "answer", "id"], ("question", "answer", "id")),
        ("amc23", ["problem", "question", "answer"], ("question", "answer", None)),  # its own
        ("aime25", ["prompt", "question", "answer"], ("prompt", "answer", None)),
    ],
)
def test_a_column_is_the_suites_own_or_a_usual_name(jsonl, name, columns, chosen):
    task = with_data(suite(name), jsonl(dict.fromkeys(columns, "1"))).options.task
    assert (task.prompt_column, task.answer_column, task.id_column) == chosen


def test_the_file_takes_the_place_of_data_set_subset_split_and_revision(jsonl):
    before, file = suite("gsm8k"), jsonl({"problem": "1", "answer": "1"})
    after = with_data(before, file)
    task, own = after.options.task, before.options.task
    assert task.data == file and (task.split, task.subset, task.revision) == (None, None, None)
    assert (task.prompt_template, task.rewards) == (own.prompt_template, own.rewards)
    kept = {"task", "problems", "conventions"}
    assert after.options.model_dump(exclude=kept) == before.options.model_dump(exclude=kept)
    gone = before.options.conventions.keys() - after.options.conventions.keys()
    assert {"data", "revision"} <= gone and "prompt_template" not in gone


# ---- every problem ----


def test_every_problem_is_in_the_order_of_the_data_and_none_is_held_out(jsonl):
    file = jsonl(*({**row(f"{n}+1=", str(n + 1)), "id": f"p{n}"} for n in range(40)))
    data_set = task(file, id_column="id")
    assert [p.id for p in data_set.every_problem()] == [f"p{n}" for n in range(40)]
    [single] = task(jsonl(row("1"), name="one.jsonl")).every_problem()
    assert single.prompt == "1"  # where a split would leave nothing to train on


def test_a_limit_keeps_the_lowest_hashes_in_the_order_of_the_data(jsonl):
    prompts = [f"{n}+1=" for n in range(20)]
    data_set = task(jsonl(*map(row, prompts)))
    seven = sorted(prompts, key=stable_hash)[:7]
    assert [p.prompt for p in data_set.every_problem(7)] == [p for p in prompts if p in seven]
    assert {p.id for p in data_set.every_problem(3)} <= {p.id for p in data_set.every_problem(7)}
    assert data_set.every_problem(99) == data_set.every_problem()
