"""Suites: the packaged files, groups, what is refused, and a file in the place of their data."""

import re
from pathlib import Path

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.extensions.evals.options import Suite, load_suites, packaged
from mugrpo.extensions.evals.suite import with_data
from mugrpo.tasks import make_task
from mugrpo.tasks.dataset import stable_hash
from tests.cases import refusal, table
from tests.tasks.builders import row, task

BENCHMARKS = ("aime24", "aime25", "aime26", "amc23", "amc24", "gsm8k", "math500", "svamp")
MINE = """
title = "Sums"
max_new_tokens = 64

[task]
data = "sums.jsonl"
"""


@pytest.fixture
def file(tmp_path: Path):
    """Return a function that writes a suite's file and returns its path."""

    def write(text: str = MINE, name: str = "mine.toml") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


def names(words: str) -> list[str]:
    return [suite.name for suite in load_suites(words)]


def test_the_packaged_suites_are_the_benchmarks_and_two_groups():
    assert packaged() == sorted([*BENCHMARKS, "math", "small"])
    assert names("math") == ["aime24", "aime25", "amc23", "amc24", "math500"]
    assert names("small") == ["gsm8k", "svamp"]


@table("name", BENCHMARKS)
def test_a_packaged_suite_pins_a_commit_and_every_convention_has_its_source(name):
    [suite] = load_suites(name)
    options, task = suite.options, suite.options.task
    sourced = {"data", "revision", "prompt_template", "rewards"}
    sourced |= {"samples", "max_new_tokens", "temperature", "top_p"}
    assert options.conventions.keys() == sourced
    for of, source in options.conventions.items():
        assert re.search(r"https://|arXiv \d{4}\.\d{5}|Inferred|^1, the distribution", source), of
        assert "\n" not in source and not source.startswith(" ") and "  " not in source
    assert re.fullmatch(r"[\w-]+/[\w-]+", task.data) and task.split
    assert re.fullmatch(r"[0-9a-f]{40}", task.revision)
    assert options.prompt.form == "chat" and task.system_prompt is None
    assert task.rewards[0].name == "math"


# Samples, limit, temperature and top-p as the field runs them.
@table(
    ("words", "sampling"),
    [
        ("aime24,aime25,aime26,amc23,amc24", (32, 32768, 0.6, 0.95)),
        ("math500", (4, 32768, 0.6, 0.95)),
        ("gsm8k,svamp", (1, 2048, 1.0, 1.0)),
    ],
)
def test_sampling_is_that_of_the_field(words, sampling):
    for _, o in ((suite.name, suite.options) for suite in load_suites(words)):
        assert (o.samples, o.max_new_tokens, o.temperature, o.top_p) == sampling
        assert o.problems is None


def test_a_file_is_a_suite_of_its_name_and_groups_are_expanded_once(file):
    [suite] = load_suites(file(name="sums.toml"))
    options = suite.options
    assert (suite.name, options.title, options.max_new_tokens) == ("sums", "Sums", 64)
    assert (options.samples, options.temperature, options.top_p) == (1, 1.0, 1.0)
    assert options.prompt.form == "chat" and options.task.prompt_template == "{prompt}"
    file()
    group = file('title = "All"\nsuites = ["small", "mine.toml", "aime24", "gsm8k"]\n', "all.toml")
    expected = ["svamp", "gsm8k", "mine", "aime24"]
    assert names(f"svamp, {group},aime24,") == expected
    assert names(f"svamp,{group},{Path(group).parent / 'mine.toml'}") == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"temperatur = 0.5\n{MINE}", "there is no option temperatur; did you mean temperature?"),
        (f"{MINE}prompt_colum = 'q'\n", "task.prompt_colum; did you mean task.prompt_column?"),
        (f"{MINE}[prompt]\nforms = 'chat'\n", "no option prompt.forms; did you mean prompt.form?"),
        (f"samples = 0\n{MINE}", "samples = 0: input should be greater than or equal to 1"),
        (f"top_p = 0\n{MINE}", "top_p = 0: input should be greater than 0"),
        (f"top_p = 1.5\n{MINE}", "top_p = 1.5: input should be less than or equal to 1"),
        (f"temperature = 0\n{MINE}", "temperature = 0: input should be greater than or equal to"),
        ("title = 'T'\nmax_new_tokens = 1\n", "task.data must be given"),
        ("task = 1\ntitle = 'T'\nmax_new_tokens = 1\n", "task = 1: it should be a table"),
        ("[task]\ndata = 'd.jsonl'\n", "title must be given; max_new_tokens must be given"),
        (f"{MINE}eval_split = 'test'\n", "task.eval_split divides the problems of a run"),
        (MINE + "eval_problems = 3\n", "task.eval_problems divides the problems of a run"),
        ("title = 'T'\nsuites = []\n", "suites = (): it should not be empty"),
        ("title = 'T'\nsuites = ['gsm8k']\nsamples = 3\n", "samples; choose among title, suites"),
        ("title = ", "Invalid value"),
    ],
)
def test_a_fault_in_a_file_is_named_with_the_way_out(file, text, fault):
    path = file(text)
    sentence = refusal(load_suites, path)
    assert sentence.startswith(f"{path}: ") and fault in sentence


def test_flags_replace_a_suites_own_values_and_nothing_else():
    [suite] = load_suites("math500")
    assert suite.over({}) == suite
    expected = {"problems": 10, "samples": 2, "temperature": 1.0, "top_p": 1.0}
    changed = suite.over(expected)
    before, after = suite.options.model_dump(), changed.options.model_dump()
    sources = {name: why for name, why in before["conventions"].items() if name not in expected}
    assert after == {**before, **expected, "conventions": sources} and changed.name == "math500"
    assert before["conventions"].keys() - sources.keys() == {"samples", "temperature", "top_p"}
    with pytest.raises(UsageError, match=r"^suite math500: samples = 0: input should be greater"):
        suite.over({"samples": 0})


BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def suite(name: str) -> Suite:
    return load_suites(name)[0]


def problems(name: str, file: str) -> list[Problem]:
    return make_task(with_data(suite(name), file).options.task).every_problem()


@table(
    ("name", "row", "expected"),
    [
        (
            "gsm8k",
            {"question": "3 cats and 2 dogs?", "answer": "3+2=<<3+2=5>>5\n#### 5"},
            ("3 cats and 2 dogs?" + BOXED, "5"),
        ),
        (
            "math500",
            {"problem": "Find $x$ in {1}.", "answer": r"\frac{1}{2}", "unique_id": "a/1.json"},
            ("Find $x$ in {1}." + BOXED, r"\frac{1}{2}"),
        ),
    ],
)
def test_a_problem_as_the_model_reads_it(jsonl, name, row, expected):
    [problem] = problems(name, jsonl(row))
    assert (problem.prompt, problem.reference) == expected
    if name == "math500":
        assert (problem.id, problem.columns) == ("a/1.json", {k: row[k] for k in list(row)[1:]})


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


def test_problems_or_those_with_the_lowest_hashes_are_in_the_order_of_the_data(jsonl):
    prompts = [f"{n}+1=" for n in range(20)]
    data_set = task(jsonl(*map(row, prompts)))
    seven = sorted(prompts, key=stable_hash)[:7]
    assert [p.prompt for p in data_set.every_problem(7)] == [p for p in prompts if p in seven]
    assert {p.id for p in data_set.every_problem(3)} <= {p.id for p in data_set.every_problem(7)}
    assert data_set.every_problem(99) == data_set.every_problem()
    file = jsonl(*({**row(f"{n}+1=", str(n + 1)), "id": f"p{n}"} for n in range(40)))
    data_set = task(file, id_column="id")
    assert [p.id for p in data_set.every_problem()] == [f"p{n}" for n in range(40)]
    [single] = task(jsonl(row("1"), name="one.jsonl")).every_problem()
    assert single.prompt == "1"  # where a split would leave nothing to train on
