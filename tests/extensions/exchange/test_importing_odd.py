"""What an import refuses, what it tells of, and what it leaves if it fails or is killed."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.exchange.imports import (
    EOS,
    GIVEN,
    Row,
    checked,
    config_in,
    imported,
    lines,
    table,
)
from tests.faults.harm import refused
from tests.runs import mugrpo as mugrpo_process

pytestmark = pytest.mark.usefixtures("no_report")


def changed(number: int, **values: Any) -> list[Row]:
    rows = table(**GIVEN)
    rows[number] |= values
    return [{k: v for k, v in row.items() if v is not None} for row in rows]


BAD: dict[str, tuple[list[Row], tuple[str, ...]]] = {
    "no reward": (
        [{"prompt": "3+2=", "response": "5"}],
        ("line 1", "no column 'reward'", "there are 'prompt', 'response'", "--columns reward="),
    ),
    "no prompt": (changed(1, prompt=None), ("line 2: it has neither a prompt nor prompt_ids",)),
    "an unknown id": (
        changed(1, response_ids=[5, 16], logprobs=[-1, -1]),
        ("line 2", "token id 16", "0 to 15", "model.path"),
    ),
    "few logprobs": (changed(1, logprobs=[-0.1]), ("line 2", "6 response_ids, but 1 logprobs")),
    "a positive logprob": (changed(1, logprobs=[-0.1] * 5 + [0.5]), ("line 2: logprobs.5", "0.5")),
    "no logprobs": (changed(1, logprobs=None), ("line 2 has no logprobs", "--policy PATH")),
    "reward nan": (changed(1, reward=float("nan")), ("line 2: reward = nan", "finite number")),
    "padding": (
        changed(1, response_ids=[5, EOS, EOS], logprobs=[-1, -1, -1]),
        ("line 2: its response goes on after the end-of-sequence token 1", "padding"),
    ),
    "left padding": (
        changed(1, response_ids=[0, 0, 5, EOS], logprobs=[0.0, 0.0, -1, -1]),
        ("line 2: its response has padding tokens",),
    ),
    "right padding of one that was cut": (
        changed(1, response_ids=[5, 6, 0], logprobs=[-1, -1, 0.0]),
        ("line 2: its response has padding tokens",),
    ),
    "a padded prompt": (
        changed(1, prompt_ids=[0, 0, 5, 6]),
        ("line 2: its prompt has padding tokens",),
    ),
    "logprobs that were not kept": (
        [row | {"logprobs": [0.0] * len(row["logprobs"])} for row in table(**GIVEN)],
        ("line 1: its logprobs are all 0", "4 of 4 rows", "--policy PATH"),
    ),
    "a word that nobody knows": (
        changed(1, status="dubious"),
        ("line 2: status = 'dubious' is no word that is known", "--columns status="),
    ),
    "turns": (changed(1, loss_mask=[1] * 6, turns=[9]), ("line 2", "ascending indices of the 6")),
    "hot": (changed(1, temperature=0.7), ("line 2 was sampled at temperature 0.7", "--rollouts.t")),
    "long": (changed(1, response_ids=[5] * 9, logprobs=[-1] * 9), ("line 2", "9 tokens", "= 8; r")),
    "unequal groups": (
        [*table(**GIVEN), table(**GIVEN)[0] | {"response": "5", "logprobs": [-0.5] * 6}],
        ("groups of unequal", "1 of 2, 1 of 3", "--group-size N"),
    ),
    "no answers": (
        [{k: v for k, v in row.items() if k != "answer"} for row in table(**GIVEN)],
        ("line 1 has no reference answer, and the reward regex needs one", "task.data"),
    ),
}


DEEP = "[" * 5000  # deeper than Python's parser goes
ODD: list[tuple[str, Any, str]] = [
    ("reward", 10**400, "too large"),
    ("reward", "9" * 400, "reward = inf"),
    *((name, DEEP, "line 2: maximum recursion depth") for name in ("logprobs", "parts", "turns")),
    *(
        ("environment", text, "is not an outcome of an environment")
        for text in (
            *('{"reward": "x"}', '{"reward": NaN}', f'{{"reward": {10**400}}}', '{"reward": [1]}'),
            *('{"failure": 5}', '{"logged": {"a": "x"}}', '{"score": 1}', "[]", "5", "null", DEEP),
        )
    ),
    ("environment", "x", "Expecting value"),
]


@pytest.mark.parametrize(("name", "value", "said"), ODD)
def test_values_of_odd_kinds_are_named(take: Any, name: str, value: Any, said: str):
    turns = {"loss_mask": [1] * 6, "turns": [0]} if name == "environment" else {}
    if name == "environment" and value == DEEP:
        said = "maximum recursion depth"
    refused(take(changed(1, **turns, **{name: value})), "line 2", said)


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_named_and_nothing_is_written(take: Any, tmp_path: Path, case: str):
    rows, parts = BAD[case]
    refused(take(rows), *parts)
    assert not (tmp_path / "run").exists()


def test_groups_are_cut_repeated_ones_left_out_and_those_of_no_batch_told(
    take: Any, tmp_path: Path
):
    rows = [*table(**GIVEN), table(**GIVEN)[0] | {"response": "5", "logprobs": [-0.5] * 6}]
    ended = checked(take(rows, "--group-size", 2))
    assert len(imported(tmp_path / "run")) == 4 and "1 rows are left out" in ended.out
    (tmp_path / "run").rename(tmp_path / "cut")
    named = [row | {"group": 1} for row in table(**GIVEN)]
    other = [row | {"group": 2, "seed": 7} for row in table(**GIVEN)]
    ended = checked(take([*named, *(row | {"group": 3} for row in named), *other]))
    ids = {problem for problem, _ in imported(tmp_path / "run")}
    assert len(imported(tmp_path / "run")) == 8 and "4 rows are left out" in ended.out
    assert sorted(identity.partition("#")[2] for identity in ids) == ["", "", "1", "1"]
    (tmp_path / "run").rename(tmp_path / "left out")
    rows = [*table(**GIVEN), *(row | {"prompt": "1+1="} for row in table(**GIVEN)[:2])]
    ended = checked(take(rows, "--schedule.problems_per_update", 2))
    assert "3 groups of 2 rollouts, for 1 batches\n1 of the groups do not fill a batch" in ended.out
    assert len(imported(tmp_path / "run")) == 4


def test_a_prompt_of_several_problems_is_told_apart_by_id_or_answer(take: Any, tmp_path: Path):
    data = [("a", "3+2=", "5"), ("b", "3+2=", "6"), ("c", "2-1=", "1")]
    data_rows = [dict(zip(("id", "prompt", "answer"), one, strict=True)) for one in data]
    (tmp_path / "problems.jsonl").write_text(lines(data_rows))
    options: list[object] = ["--task.data", tmp_path / "problems.jsonl", "--task.eval_share", 0.0]
    options += ["--task.id_column", "id"]
    rows = [{k: v for k, v in row.items() if k != "answer"} for row in table(**GIVEN)]
    ended = take(rows, *options)
    refused(ended, "line 1: its prompt, and problem_id or answer, are those of 0 problems")
    for known in ({"problem_id": "b"}, {"answer": "6"}):
        checked(take([row | known for row in rows[:2]], *options))
        assert {r.problem_id for r, _ in imported(tmp_path / "run").values()} == {"b"}
        (tmp_path / "run").rename(tmp_path / f"by_{next(iter(known))}")


def test_an_import_that_is_killed_leaves_no_run_and_can_be_repeated(take: Any, tmp_path: Path):
    (tmp_path / "r.jsonl").write_text(lines(table(**GIVEN)))
    words = ("import", config_in(tmp_path), tmp_path / "r.jsonl", "--run-dir", tmp_path / "run")
    assert mugrpo_process(*words, at="half a score shard").status == -signal.SIGKILL
    assert not (tmp_path / "run").exists()
    checked(take(tmp_path / "r.jsonl"))
