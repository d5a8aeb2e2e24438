"""What `mugrpo check` says of rewards that pay for answers which say nothing."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mugrpo.config.load import build_config
from mugrpo.disk.errors import UsageError
from mugrpo.run.preflight import _try_for_nothing
from tests.cases import table

SUMS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(1, 13)]


def tried(options: dict[str, Any]) -> list[str]:
    """Return what is said of the rewards of a config."""
    config = build_config({**options, "workers": {"count": 1}}, "test")
    task = config.task.made(config.workers)
    said: list[str] = []
    run = SimpleNamespace(
        folder=SimpleNamespace(newest_update=lambda: 0, is_untouched=lambda: True),
        config=config,
        task=task,
        problems=task.train_problems(),
        prompts=SimpleNamespace(ids_of=lambda _: []),
        progress=SimpleNamespace(say=said.append),
        state=lambda *_: None,
    )
    try:
        _try_for_nothing(cast(Any, run), True)
    finally:
        task.close()
    return said


def dataset(folder: Path, rows: list[dict[str, Any]], *rewards: Any, **options: Any) -> Any:
    data = folder / "data.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    own = folder / "own.py"
    own.write_text(
        "def judge(completions, **columns):\n"
        "    prompt = columns['prompts'][0]\n"
        f"    return [{options.pop('pays', '0')} for said in completions]\n"
    )
    return {
        "name": "dataset",
        "data": str(data),
        "eval_share": 0,
        "rewards": [f"{own}:judge" if reward == "own" else reward for reward in rewards],
        **options,
    }


@table("task", ["chain", "letters", "carry"])
def test_the_embedded_tasks_pay_the_right_answer_alone(task):
    said = tried({"task": {"name": task, "train_problems": 8, "eval_problems": 8}})
    paid = [line.split()[1] for line in said]
    assert paid == ["1", "0", "0", "0", "0"]
    assert said[0] == "paid        1 on average for the right answer to 8 problems"


def means(mean: str, *what: str) -> list[str]:
    """Return what is said if all of `what` is paid the same on average."""
    return [f"paid {mean} on average for {one} problems" for one in what]


def test_what_is_tried_and_for_how_many_problems(tmp_path):
    """The constant is the first problem's answer. Problems with that answer are left out."""
    said = tried({"task": dataset(tmp_path, SUMS, "numeric")})
    nothing = ("an empty answer to 8", "the question itself to 8", "the constant '2' to 7")
    assert [" ".join(line.split()) for line in said] == [
        *means("1", "the right answer to 8"),
        *means("0", *nothing, "another problem's answer to 8"),
    ]


def test_an_answer_that_two_problems_share_is_no_other_answer(tmp_path):
    """Answers are yes, yes, no, no, ...: four neighbours differ, and four problems are not yes."""
    rows = [{"prompt": f"is {n}?", "answer": "yes" if n % 4 < 2 else "no"} for n in range(8)]
    said = tried({"task": dataset(tmp_path, rows, "exact")})
    what = ("the constant 'yes' to 4", "another problem's answer to 4")
    assert [" ".join(line.split()) for line in said[-2:]] == means("0", *what)


# What the function pays beside numeric, and the mean paid for: the right answer, an empty one, the
# question, the constant, another's.
@table(
    ("pays", "paid"),
    [
        ("0.05", ["1.05", "0.05", "0.05", "0.05", "0.05"]),
        ("0.25 * (said == prompt)", ["1", "0", "0.25", "0", "0"]),
        ("0.5 * (not said)", ["1", "0.5", "0", "0", "0"]),
    ],
)
def test_from_above_a_twentieth_it_warns(tmp_path, pays, paid):
    said = tried({"task": dataset(tmp_path, SUMS, "numeric", "own", pays=pays)})
    warned = [line.startswith("warning: ") for line in said]
    assert [line.removeprefix("warning: ").split()[1] for line in said] == paid
    assert warned == [False, *(float(mean) > 0.05 for mean in paid[1:])]


def test_rewards_that_reject_the_right_answer_are_told(tmp_path):
    """The function compares a number with a text, so nothing is ever right to it."""
    task = dataset(tmp_path, SUMS, "own", pays="float(int(said or 0) == columns['answer'][0])")
    said = tried({"task": task, "rewards": {"failure_limit": 1}})
    told = "warning: paid 0 on average for the right answer to 8 problems; unless it lacks a form"
    assert said[0].startswith(told)


def test_a_reward_that_only_punishes_rejects_no_right_answer(tmp_path):
    task = dataset(tmp_path, SUMS, "own", pays="float(said == columns['answer'][0]) - 1")
    paid = [" ".join(line.split()[:2]) for line in tried({"task": task})]
    assert paid == ["paid 0", *["paid -1"] * 4]


def test_rewards_without_a_verdict_are_not_said_to_reject(tmp_path):
    task = dataset(tmp_path, SUMS, "own", pays="None")
    said = tried({"task": task, "rewards": {"failure_limit": 1}})
    assert said[0].startswith("paid        nothing for the right answer to 8 problems")


def test_what_is_tried_is_spread_over_the_data(tmp_path):
    """Of 24 problems every third is tried, so the constant is the answer to all but the first."""
    rows = [{"prompt": f"{n}+0=", "answer": str(n)} for n in range(24)]
    right = "float(bool(said) and int(prompt[:-3]) % 3 == 0 and prompt == said + '+0=')"
    said = tried({"task": dataset(tmp_path, rows, "own", pays=right)})
    assert " ".join(said[0].split()) == "paid 1 on average for the right answer to 8 problems"


@table(
    ("pays", "what"),
    [
        ("1", "an empty answer"),
        ("float(bool(said))", "the question itself"),
        ("0.5 + 0.5 * (said == columns['answer'][0])", None),  # at most half of what is right
        ("float(said.isdecimal())", "the constant '2'"),
    ],
)
def test_at_the_full_reward_it_refuses_unless_that_is_known(tmp_path, pays, what):
    task = dataset(tmp_path, SUMS, "own", pays=pays)
    if what is None:
        assert any("warning: paid 0.5 " in line for line in tried({"task": task}))
        return
    with pytest.raises(UsageError, match=f"as much for {what} as for the right answer.*true$"):
        tried({"task": task})
    said = tried({"task": task, "rewards": {"pays_for_nothing": True}})
    assert any(line.startswith(f"warning: paid 1 on average for {what}") for line in said)


@table(("pays", "refused"), [("0.2", False), ("1.0", True)])
def test_without_references_a_reward_of_one_is_the_full_one(tmp_path, pays, refused):
    rows = [{"prompt": row["prompt"]} for row in SUMS]
    task = dataset(tmp_path, rows, "own", pays=pays)
    if refused:
        with pytest.raises(UsageError, match="as much for an empty answer"):
            tried({"task": task})
        return
    said = tried({"task": task})
    assert "nothing is known of the right answer: the data name none" in said[0]
    what = ("an empty answer to 8", "the question itself to 8", "the constant '0' to 8")
    assert said[1:] == [f"warning: {line}" for line in means("0.2", *what)]


def test_what_has_no_verdict_is_no_number(tmp_path):
    pays = "0.01 / len(said) / (said != prompt)"
    said = tried({"task": dataset(tmp_path, SUMS, "own", pays=pays)})
    for what, line in zip(("an empty answer", "the question itself"), said[1:3], strict=True):
        assert f"nothing for {what} to 8 problems, 8 without a verdict" in line


def test_the_source_of_a_mixture_is_named(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    sums = [{"prompt": f"{n}-1=", "answer": str(n - 1)} for n in range(5, 14)]
    sources = [
        {"source": "good", **dataset(tmp_path / "one", SUMS, "numeric")},
        {"source": "bad", **dataset(tmp_path / "two", sums, "own", pays="1")},
    ]
    with pytest.raises(UsageError, match="for an empty answer in the source 'bad' as for"):
        tried({"task": {"name": "mixture", "sources": sources}})
