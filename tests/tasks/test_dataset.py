"""From rows to problems: columns, ids, prompts and duplicates."""

import hashlib
import json
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.extensions.code.cases import read_tests
from tests import cases
from tests.cases import table
from tests.tasks.builders import all_problems, chat, refusal, row, task

# ---- columns ----


def test_a_row_is_a_problem_whose_other_columns_are_passed_on(jsonl):
    data = jsonl({"id": "a7", "question": "3+2=", "solution": "5", "level": 2, "tags": ["x", None]})
    options = {"prompt_column": "question", "answer_column": "solution", "id_column": "id"}
    assert all_problems(data, **options) == [
        Problem("a7", "3+2=", "5", {"id": "a7", "solution": "5", "level": 2, "tags": ["x", None]})
    ]
    data = jsonl({"prompt": "3+2=", "n": 1})
    (problem,) = all_problems(data, answer_column=None, rewards="module:judge")
    assert (problem.reference, problem.columns) == ("", {"n": 1})


def test_without_an_id_column_the_id_is_a_hash_of_prompt_and_answer(jsonl):
    (problem,) = all_problems(jsonl(row("3+2=", "5", source="a")))
    assert problem.id == hashlib.sha256(b'["3+2=", "5"]').hexdigest()[:16]
    (other,) = all_problems(jsonl(row("3+2=", "5", source="b")))
    assert other.id == problem.id
    (another,) = all_problems(jsonl(row("3+2=", "6")))
    assert another.id != problem.id


@table(
    ("value", "text"),
    [
        ("5", "5"),
        (" 5 ", " 5 "),
        (5, "5"),
        (-3, "-3"),
        (4.5, "4.5"),
        (4.0, "4"),
        (-0.0, "0"),
        (1e22, "1" + "0" * 22),
        (2.5e-7, "0.00000025"),
        (0.1 + 0.2, "0.30000000000000004"),
        ("04", "04"),
        ("4.0", "4.0"),
        (10**20, "1" + "0" * 20),
        (1e20, "1" + 20 * "0"),  # 15 digits are certain
        (6.02214076e23, "602214076000000000000000"),
        (2.0**53 - 1, "9007199254740991"),
    ],
)
def test_answers_are_text_or_numbers_without_exponent_or_zeros_at_the_end(jsonl, value, text):
    (problem,) = all_problems(jsonl(row("3+2=", value)))
    assert (problem.reference, problem.columns) == (text, {"answer": value})


@table(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        ("  ", '"  "'),
        ([1], "[1]"),
        ({"a": 1}, '{"a": 1}'),
        (math.nan, "NaN"),  # JSON's NaN and Infinity, as Python and pandas write them
    ],
)
def test_other_answers_are_refused_with_file_line_and_column(jsonl, value, shown):
    data = jsonl(row("1"), row("2", value))
    assert refusal(data).startswith(
        f"{data}, line 2: column 'answer' is {shown}; it must be text or a finite number"
    )


@table(
    ("kind", "value", "text"),
    [
        (pa.decimal128(5, 2), Decimal("1.50"), "1.5"),
        (pa.decimal128(5, 2), Decimal("4.00"), "4"),
        (pa.float32(), 5.1, "5.1"),  # 5.099999904632568 as a float64
        (pa.float16(), np.float16(5.1), "5.1"),  # 5.1015625
        (pa.float64(), 5.1, "5.1"),
        (pa.float32(), 7.0, "7"),
        (pa.int64(), 7, "7"),
    ],
)
def test_a_number_of_parquet_is_as_short_as_it_was_written(tmp_path, kind, value, text):
    """So is one in a list within a table, as verl stores its references."""
    data = str(tmp_path / "p.parquet")
    nested = pa.array([{"truths": [value]}], pa.struct([("truths", pa.list_(kind))]))
    pq.write_table(
        pa.table({"prompt": ["1"], "answer": pa.array([value], kind), "r": nested}), data
    )
    for column in ("answer", "r.truths.0"):
        assert [p.reference for p in all_problems(data, answer_column=column)] == [text]


def test_the_function_of_livecodebenchs_tests_is_in_the_column_beside_them(jsonl):
    tests = [{"input": "3\n4", "output": "7", "testtype": "functional"}]
    beside = {"public_test_cases": json.dumps(tests), "metadata": '{"func_name": "add"}'}
    options = {"answer_column": "public_test_cases", "rewards": ["code"]}
    (problem,) = all_problems(jsonl({"prompt": "Add.", **beside}), **options)
    (case,) = read_tests(problem.reference).cases
    assert case.job == {"call": "add", "arguments": [3, 4]}


def test_references_that_math_or_numeric_cannot_use_are_named_before_any_work(jsonl, tmp_path):
    """So are those that it reads but cannot finish with. Each is judged as its own answer."""
    good = [r"\$36", r"\$32,\!348", r"\text{(C)}", "[1,2)", r"\boxed{1} or \boxed{2}", "2^{2^{99}}"]
    data = jsonl(*(row(str(n), answer) for n, answer in enumerate([*good, "$", "$ $"])))
    loaded = task(data, rewards=["math"], eval_share=0.0)
    found = cases.refusal(loaded.prepare, tmp_path / "rewards.log")
    loaded.close()
    assert f'cannot use 2 of 8 reference answers; the first: "$" ({data}, line 7): math: ' in found
    data = jsonl(row("1", "1,000.5 m"), row("2", "\N{MINUS SIGN}2"), row("3", "many"))
    with pytest.raises(UsageError, match="line 3: column 'answer' is \"many\", which the reward n"):
        task(data, rewards=("exact", "numeric")).train_problems()
    assert len(all_problems(data)) == 3  # if texts are compared


@table(
    ("columns", "option", "hint"),
    [
        (("prompts", "answer"), "prompt_column", "did you mean 'prompts'? Name it"),
        (("Prompt", "answer"), "prompt_column", "did you mean 'Prompt'? Name it"),
        (("question", "answer"), "prompt_column", "name one of them"),
        (("prompt", "answers"), "answer_column", "did you mean 'answers'? Name it"),
        (("prompt", "solution"), "answer_column", "name one of them"),
    ],
)
def test_a_missing_column_is_refused_with_the_nearest(jsonl, columns, option, hint):
    first, second = columns
    data = jsonl({first: "3+2=", second: "5"})
    assert refusal(data) == (
        f"{data}, line 1 has no column {option.removesuffix('_column')!r} (it has {first!r}, "
        f"{second!r}); {hint} with --task.{option}"
    )
    assert len(all_problems(data, prompt_column=first, answer_column=second)) == 1


# ---- prompts ----


@table(
    ("messages", "complaint"),
    [
        (["hi"], 'message 0 of the prompt is "hi"; it must be'),
        ([*chat("hi"), {"role": "user"}], 'message 1 of the prompt is {"role": "user"}'),
        ([{"role": "user", "content": ["hi"]}], "message 0 of the prompt is {"),
        ([{"role": "human", "content": "hi"}], "one of system, user, assistant, tool,"),
        (chat("hi", "hello"), "the prompt ends with the turn of the assistant"),
        ([{"role": "developer", "content": "Think."}], "turn of the developer"),
    ],
)
def test_a_conversation_that_cannot_be_answered_is_refused(jsonl, messages, complaint):
    data = jsonl(row("1"), row(messages))
    found = refusal(data)
    assert found.startswith(f"{data}, line 2: ") and complaint in found


CALLS = (
    {"role": "user", "content": "3+2?"},
    {
        "role": "assistant",
        "reasoning_content": "A sum.",
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 3, "b": 2}}}],
    },
    {"role": "tool", "name": "add", "tool_call_id": "1", "content": "5"},
)


@table("suffix", ["jsonl", "parquet"])
def test_a_conversation_keeps_all_keys_of_its_messages(jsonl, tmp_path, suffix):
    """Parquet gives each message the keys of all, so null there means absent."""
    rows = [row(list(CALLS)), row("plain")] if suffix == "jsonl" else [row(list(CALLS))]
    data = jsonl(*rows)
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), data := str(tmp_path / "p.parquet"))
    assert all_problems(data)[0].prompt == (CALLS[0], {**CALLS[1], "content": ""}, CALLS[2])


@table(
    "text",
    [
        json.dumps(chat("3+2?", "5", r"\(2+2\)?")),
        repr(chat("3+2?", "5", r"\(2+2\)?")),  # as pandas writes it into a CSV file
        json.dumps(chat("3+2?", "5", r"\(2+2\)?"), indent=1),
    ],
)
def test_a_conversation_stored_as_text_is_a_conversation(jsonl, tmp_path, text):
    pa_csv.write_csv(pa.table({"prompt": [text], "answer": ["4"]}), tmp_path / "p.csv")
    for data in (jsonl(row(text)), str(tmp_path / "p.csv")):
        (problem,) = all_problems(data)
        assert problem.prompt == tuple(chat("3+2?", "5", r"\(2+2\)?"))


@table("text", ["[1, 2]", '{"a": 1}', '[{"role": "user"', "[{x}] {y}", "[]"])
def test_other_text_in_brackets_is_a_prompt(jsonl, text):
    assert [p.prompt for p in all_problems(jsonl(row(text)))] == [text]


def test_dotted_paths_lead_into_tables_and_text_that_writes_one(jsonl):
    """The columns of verl's data sets, whose references are in `reward_model`."""
    verl = {
        "prompt": chat("3+2?"),
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": '{"index": 7, "question": {"text": "3+2?"}}',
    }
    options = {"answer_column": "reward_model.ground_truth", "id_column": "extra_info.index"}
    (problem,) = all_problems(jsonl(verl), **options, prompt_column="extra_info.question.text")
    assert (problem.id, problem.prompt, problem.reference) == ("7", "3+2?", "5")
    assert problem.columns == verl  # whole, for reward functions
    (literal,) = all_problems(
        jsonl({"prompt": "1", "a.b": "2", "a": {"b": "3"}}), answer_column="a.b"
    )
    assert literal.reference == "2"
    near = refusal(jsonl(verl), answer_column="ground_truth")
    assert "did you mean 'reward_model.ground_truth'?" in near
    assert "--task.answer_column reward_model.style" in refusal(
        jsonl(verl), answer_column="reward_model"
    )


# ---- references ----


@table(
    ("answer", "rewards", "reference"),
    [
        ("3 + 9 = <<3+9=12>>12.\n#### 12", "math", "12"),
        ("####12", "exact", "12"),
        ("The answer is: 180.", "math", "The answer is: 180."),
        ("[1, 2]", "math", "[1, 2]"),
        ("[1,2)", "math", "[1,2)"),
        (r"So the answer is \boxed{5}.", "math", r"So the answer is \boxed{5}."),
        ("She has 5.\n#### 12", "numeric", "12"),
        ('{"answer": 4}', "exact", '{"answer": 4}'),
        ("[\"assert f() == '#### 1'\"]", "code", "[\"assert f() == '#### 1'\"]"),
    ],
)
def test_a_reference_follows_the_last_mark_of_gsm8k_or_is_the_cell(
    jsonl, answer, rewards, reference
):
    found = [p.reference for p in all_problems(jsonl(row("1", answer)), rewards=rewards)]
    assert found == [reference]


@table(
    ("answer", "option"),
    [
        ('{"answer": 4}', "answer.answer"),
        ("{'unit': 'm', 'value': 4.0}", "answer.unit"),
        ('["4"]', "answer.0"),
    ],
)
def test_json_with_an_answer_inside_is_refused_with_an_entry_to_name(jsonl, answer, option):
    data = jsonl(row("1", answer))
    assert refusal(data, rewards="math").endswith(f"--task.answer_column {option}")
    assert all_problems(data, rewards="math", answer_column=option)


# ---- template and system prompt ----


def test_the_template_is_the_last_users_and_a_system_prompt_of_its_own_stays(jsonl):
    own = [{"role": "system", "content": "Think."}, *chat("1+1", "2", "3+2")]
    data, given = (
        jsonl(row("3+2"), row(own[1:]), row(own)),
        {"role": "system", "content": "Be brief."},
    )
    template = {"system_prompt": "Be brief.", "prompt_template": "{prompt}="}
    text, bare, with_own = all_problems(data, **template)
    turns = tuple(chat("1+1", "2", "3+2="))
    assert text.prompt == (given, *chat("3+2="))
    assert bare.prompt == (given, *turns)
    assert with_own.prompt == ({"role": "system", "content": "Think."}, *turns)


# ---- duplicates ----


def test_rows_that_repeat_an_id_or_a_problem_are_left_out_and_counted(jsonl, tmp_path):
    data = jsonl(*(row(str(n), id=n % 2) for n in range(7)))
    kept = all_problems(data, id_column="id")
    assert [(p.id, p.prompt) for p in kept] == [("0", "0"), ("1", "1")]
    data = jsonl(row("3+2=", "5"), row("3+2=", "five"), row("3+2=", "5"))
    loaded = task(data, eval_share=0.0)
    assert len(loaded.train_problems()) == 2
    assert loaded.prepare(tmp_path / "rewards.log") == [
        "1 rows repeat the problem or id of an earlier one and are left out (the first: "
        f"{data}, line 3)"
    ]
    loaded.close()
