"""Bad data and prompts are refused before a model is loaded, and changed data later."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.faults.case import GOOD, Case, Row, chain, chains, lines
from tests.faults.harm import refused
from tests.runs import mugrpo, read_metrics

pytest_plugins = ["tests.run_fixtures"]


def test_a_data_set_of_chains_is_trained_on_from_start_to_end(case: Case):
    case.data()
    ended = case.train("--evaluation.every", 3)
    assert ended.status == 0 and ended.err == "" and "canary" not in ended.out
    made = read_metrics(case.run_dir)
    assert [line["update"] for line in made if line["kind"] == "update"] == [1, 2, 3]
    (refresh,) = (line for line in made if line["kind"] == "refresh")
    # The prompt holds all but the last step, so most answers are right, but not all.
    assert 0 < refresh["behavior_reward"] < 1
    assert refresh["behavior_reward"] == refresh["status/right"] / 24


# ---- bad data ----


@pytest.mark.parametrize(
    ("there", "option", "hint"),
    [
        ({"question": "q", "answer": "1"}, "prompt_column", "name one of them"),
        ({"prompts": "q", "answer": "1"}, "prompt_column", "did you mean 'prompts'?"),
        ({"prompt": "q", "answers": "1"}, "answer_column", "did you mean 'answers'?"),
    ],
)
def test_a_missing_column_is_refused(case: Case, there: Row, option: str, hint: str):
    prompt, answer = there
    rows = [{prompt: row["prompt"], answer: row["answer"]} for row in chains()]
    data = case.data(lines(rows))
    missing = option.removesuffix("_column")
    parts = (f"{data}, line 1 has no column {missing!r} (it has {prompt!r}, {answer!r}); {hint}",)
    case.refused(parts=(*parts, f"--task.{option}"))
    case.starts(f"--task.{option}", prompt if missing == "prompt" else answer)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_data_set_is_refused(case: Case, content: bytes):
    data = case.data(content)
    case.refused(parts=(f"{data} has no rows",))
    case.data()
    case.starts()


def test_a_data_set_that_is_all_held_out_is_refused(case: Case):
    data = case.data(lines(chains()[:1]))
    case.refused(parts=(f"{data}: no problem is left to train on; lower eval_share",))
    case.starts("--task.eval_share", "0.0", "--schedule.problems_per_update", 1)


def test_evaluation_without_held_out_problems_is_refused(case: Case):
    case.data()
    options = ("--task.eval_share", "0.0", "--evaluation.every", 3)
    case.refused(*options, parts=("no problem is held out", "--evaluation.every 0"))
    case.starts(*options[:2])


def test_duplicate_ids_are_refused(case: Case):
    data = case.data(lines([{**row, "id": n % 26} for n, row in enumerate(chains())]))
    options = ("--task.id_column", "id")
    parts = (f"{data} has the same id twice: '0' ({data}, line 27)", "--task.duplicates drop")
    case.refused(*options, parts=parts)
    case.starts(*options, "--task.duplicates", "drop")


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        (None, "the prompt is null"),
        (7, "the prompt is 7"),
        ("", "the prompt is empty"),
        ([{"role": "robot", "content": "1+1="}], "message 0 of the prompt has role 'robot'"),
        ([{"role": "assistant", "content": "2"}], "the prompt ends with the turn of the assistant"),
        ("1+\ud83d=", "character 2 is half a surrogate pair ('\\ud83d')"),
    ],
)
def test_a_bad_prompt_is_refused(case: Case, prompt: Any, complaint: str):
    data = case.data(GOOD + lines([{"prompt": prompt, "answer": "2"}]))
    case.refused(parts=(f"{data}, line 28: {complaint}",))
    case.data()
    case.starts()


FIRST = b'{"prompt": "1+1=", "answer": "2"}\n'  # 34 bytes


@pytest.mark.parametrize(
    ("content", "name", "complaint"),
    [
        (FIRST + b'{"prompt": "\xe9"}\n', "p.jsonl", "line 2: byte 46 of the file (0xe9) is not"),
        (FIRST + b'{"prompt": }\n', "p.jsonl", "line 2 is not JSON at byte 45 of the file"),
        (FIRST + b"[]\n", "p.jsonl", "line 2 is a list, not an object"),
        ("\ufeffprompt,answer\n".encode("utf-16-le"), "p.csv", " is UTF-16; save it as UTF-8"),
        (b"prompt,answer\n1+1=\n", "p.csv", "line 2 has 1 fields, but the header names 2 columns"),
        (b"prompt", "p.parquet", " cannot be read as parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    case: Case, content: bytes, name: str, complaint: str
):
    data = case.data(content, name)
    case.refused(name=name, parts=(str(data), complaint))
    case.starts("--task.data", case.data(name="good.jsonl"), name=name)


@pytest.mark.parametrize("name", ["absent.jsonl", "absent/p.txt", "."])
def test_a_missing_file_is_refused(case: Case, name: str):
    case.data()
    case.refused(parts=(str(case.folder / name),), name=name)
    case.starts("--task.data", case.folder / "p.jsonl", name=name)


def test_half_a_surrogate_pair_is_refused(case: Case):
    data = case.data(GOOD + b'{"prompt": "1+1=\\ud83d", "answer": "2"}\n')
    case.refused(parts=(f"{data}, line 28: character 4 is half a surrogate pair ('\\ud83d')",))
    case.data(GOOD + b'{"prompt": "1+1=", "answer": "\\ud83d"}\n')
    case.refused(parts=(f"{data}, line 28: character 0 is half a surrogate pair ('\\ud83d')",))
    case.data()
    case.starts()


@pytest.mark.parametrize("option", ["split", "subset", "revision", "eval_split"])
def test_options_of_hub_data_are_refused_for_a_local_file(case: Case, option: str):
    data = case.data()
    parts = (f"{data} is a local file, which has no split", "leave 'test' out", "task.eval_data")
    case.refused(f"--task.{option}", "test", parts=parts)
    case.starts()


def test_a_reference_that_the_reward_cannot_compare_with_is_refused(case: Case):
    data = case.data(GOOD + lines([{**chain(1, 1), "answer": "few"}]))
    parts = (f"{data}, line 28: column 'answer' is \"few\"", "the reward numeric cannot compare")
    case.refused("--task.rewards", "numeric", parts=(*parts, "choose another reward"))
    case.starts()


def long(terms: int) -> bytes:
    """Return a chain of ones: 2 x terms tokens, plus 6 for each step except the last."""
    return lines([chain(*[1] * terms)])


def test_prompts_without_room_for_a_response_are_refused_dropped_or_truncated(case: Case):
    """65 terms are 130 + 6 x 63 = 508 tokens. The context of 512 less 8 for a response is 504."""
    case.data(GOOD + long(65) + long(64))
    options = ("--task.eval_share", "0.0")
    parts = ("1 of 29 prompts are longer than the 504 tokens", "(the longest has 508)")
    case.refused(
        *options, parts=(*parts, "lower rollouts.max_new_tokens", "--prompt.overlong drop")
    )
    ended = case.starts(*options, "--prompt.overlong", "drop")
    assert "1 of 29 problems are left out" in ended.out
    shutil.rmtree(case.run_dir)
    assert "left out" not in case.starts(*options, "--prompt.overlong", "truncate").out


def test_a_prompt_longer_than_the_context_is_refused_in_one_sentence(case: Case):
    case.data(GOOD + long(70))
    refused(mugrpo("train", *case.words("--task.eval_share", "0.0")), "(the longest has 548)")


def test_held_out_problems_that_are_dropped_are_reported(case: Case):
    case.data()
    held_out = case.data(lines([chain(1, 1, 1)]) + long(65), "e.jsonl")
    ended = case.starts("--task.eval_data", held_out, "--prompt.overlong", "drop")
    assert "1 of 2 problems are left out: their prompts are too long" in ended.out


def test_a_conversation_in_plain_form_is_refused_and_chat_form_starts(case: Case):
    turns = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in chains()]
    case.data(lines(turns))
    plain = ("--prompt.form", "plain", "--prompt.chat_template", "none")
    case.refused(*plain, parts=("is a conversation; use --prompt.form chat",))
    case.starts()


def test_a_refusal_in_the_first_evaluation_does_not_bind_the_config(case: Case):
    turns = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in chains()]
    case.data(lines(turns))
    plain = ("--prompt.form", "plain", "--prompt.chat_template", "none")
    more = ("--evaluation.every", 3, "--prompt.overlong", "truncate")
    refused(case.train(*plain, *more), "is a conversation; use --prompt.form chat")
    case.starts(*more)


# ---- changed data ----


def test_changed_data_is_refused_and_the_same_problems_continue_from_any_directory(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    data = case.data()
    monkeypatch.chdir(case.folder)
    case.starts("--task.data", "p.jsonl")
    monkeypatch.chdir("/")
    rows = chains()
    for changed in (rows[:-1], rows[::-1], [*rows[:-1], {**rows[-1], "level": 2}]):
        data.write_bytes(lines(changed))
        refused(case.command("train", case.run_dir), "the problems changed", "--force")
    data.unlink()
    refused(case.command("train", case.run_dir), f"there is no data file {data}")
    data.write_bytes(GOOD.replace(b'": "', b'":"'))  # the same problems in other bytes
    assert case.command("train", case.run_dir).status == 0
