"""The config that `mugrpo init` guesses from rows of several shapes."""

import json
from pathlib import Path
from typing import Any

import pytest

from mugrpo.cli import main
from mugrpo.config.load import load_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.tasks.dataset import Dataset
from mugrpo.tools.init import write_config
from tests.cases import table

VERL = {"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2"}}


def guessed(folder: Path, rows: list[dict[str, Any]]) -> tuple[RunConfig, list[str]]:
    """Return the config that is written for `rows`, and what is said."""
    data, said = folder / "data.jsonl", list[str]()
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_config(str(data), folder / "mine.toml", None, said.append)
    return load_config(folder / "mine.toml"), said


@table(
    ("row", "prompt", "answer", "reward"),
    [
        ({"question": "2+2?", "answer": "4"}, "question", "answer", "numeric"),
        ({"question": "2+2?", "answer": "So\n#### 1,200"}, "question", "answer", "numeric"),
        ({"problem": "x?", "answer": r"\sqrt{2}", "id": 1}, "problem", "answer", "math"),
        ({"prompt": "Where?", "label": "Paris"}, "prompt", "label", "exact"),
        (VERL, "prompt", "reward_model.ground_truth", "numeric"),
        ({"prompt": "add", "answer": '["assert add(1, 2) == 3"]'}, "prompt", "answer", "code"),
        ({"prompt": "Tell me", "output": "Once upon a time. " * 9}, "prompt", "answer", "brief"),
        ({"instruction": "Tell me"}, "instruction", "answer", "brief"),
        (
            {"prompt": "x?", "reward_model": {"ground_truth": '["150"]'}},
            *("prompt", "reward_model.ground_truth.0", "numeric"),
        ),
        (
            {"question": "Double.", "solution": "def double(x):\n    return 2 * x"},
            *("question", "answer", "brief"),
        ),
        ({"question": "Double.", "answer": "return x * 2 / 1"}, "question", "answer", "exact"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "1+1?"}]}]}
            | {"answer": "2"},
            *("prompt", "answer", "numeric"),
        ),
    ],
)
def test_columns_and_reward_are_guessed(tmp_path, row, prompt, answer, reward):
    config, _ = guessed(tmp_path, [{**row, "n": n} for n in range(30)])
    task = config.task
    assert (task.prompt_column, task.answer_column) == (prompt, answer)
    assert [getattr(r, "function", r.name).rpartition(":")[2] for r in task.rewards] == [reward]
    assert Dataset(task, config.workers).every_problem()


ALPACA = [{"instruction": "Add them.", "input": f"{n} {n}", "output": str(2 * n)} for n in range(3)]


@table(
    ("rows", "said"),
    [
        (ALPACA, "'input' says what 'instruction' is about"),
        (
            [{"question": "Add them.", "numbers": f"{n} 1", "answer": n + 1} for n in range(3)],
            "line 2 asks what an earlier row asks, and has another answer",
        ),
    ],
)
def test_a_prompt_that_lacks_a_column_is_refused(tmp_path: Path, rows: Any, said: str):
    with pytest.raises(UsageError, match=said):
        guessed(tmp_path, rows)
    assert not (tmp_path / "mine.toml").exists()


def test_a_reward_that_cannot_tell_answers_apart_is_not_guessed(tmp_path: Path):
    """To `numeric`, numbers that differ by less than 1e-6 are one."""
    rows = [{"prompt": f"{n}?", "answer": f"0.000000{n + 1}"} for n in range(6)]
    config, said = guessed(tmp_path, rows)
    assert said[0].startswith("the reward 'numeric' does not fit: ")
    assert [reward.name for reward in config.task.rewards] == ["function"]


def test_nothing_is_overwritten_and_prompts_are_needed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("odd.jsonl").write_text('{"a": "1+1", "b": "2"}\n{"a": "1+2", "b": "3"}\n')
    assert main(["init", "--from", "odd.jsonl"]) == 2
    assert "(it has 'a', 'b')" in capsys.readouterr().err and not Path("mine.toml").exists()
    named = ["--prompt-column", "a", "--out", "named.toml", "--answer-column"]
    assert main(["init", "--from", "odd.jsonl", *named, "c"]) == 2
    assert "not every row has a column c; name the columns with" in capsys.readouterr().err
    assert main(["init", "--from", "odd.jsonl", *named, "b"]) == 0
    task = load_config(Path("named.toml")).task
    assert (task.prompt_column, task.answer_column) == ("a", "b")
    Path("rewards.py").unlink()
    Path("good.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n')
    Path("rewards.py").write_text("mine = 1")
    assert main(["init", "--from", "good.jsonl"]) == 0
    assert Path("rewards.py").read_text() == "mine = 1"
    with pytest.raises(UsageError, match=r"mine\.toml exists already"):
        write_config("good.jsonl", Path("mine.toml"), None, say=print)
