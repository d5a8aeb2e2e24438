"""README's example of a model and problems of your own: its files, and that it trains."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from mugrpo.cli import main
from tests.blocks import blocks
from tests.runs import ROOT, read_metrics

FILES = ROOT / "examples" / "own_problems"
BLOCKS = [block.text for block in blocks("README.md")]
BEGIN = BLOCKS.index((FILES / "rewards.py").read_text()) - 2
LINES, WRITES_PROBLEMS, REWARDS, CONFIG, COMMANDS = BLOCKS[BEGIN : BEGIN + 5]

# The embedded model reads sums only: "What is 3+9? Answer with ..." becomes "3+9=".
SUM = "{{ messages[0]['content'].split('?')[0].removeprefix('What is ') }}="
EMBEDDED = "--model.path chain --prompt.chat_template sum.jinja --optimizer.lr 1e-3"


def test_readme_has_the_files_word_for_word(tmp_path: Path):
    assert (FILES / "rewards.py").read_text() == REWARDS
    assert (FILES / "mine.toml").read_text() == CONFIG
    problems = (FILES / "problems.jsonl").read_text()
    assert LINES in problems and problems.count("\n") == 100
    subprocess.run(["bash", "-ec", WRITES_PROBLEMS], cwd=tmp_path, check=True)
    assert (tmp_path / "problems.jsonl").read_text() == problems
    assert {file.name for file in FILES.iterdir() if file.is_file()} == {
        "problems.jsonl",
        "rewards.py",
        "mine.toml",
    }


def test_its_commands_train_an_embedded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = shutil.copytree(FILES, tmp_path / "own", ignore=shutil.ignore_patterns("runs"))
    (folder / "sum.jinja").write_text(SUM)
    monkeypatch.chdir(folder)
    train, report = (  # the words of `mugrpo train mine.toml` and `mugrpo report runs/mine`
        shlex.split(line, comments=True)[1:]
        for line in COMMANDS.splitlines()
        if line.startswith("mugrpo ")
    )
    assert main([*train, *EMBEDDED.split(), "--task.workers.count", "1"]) == 0
    lines = read_metrics(Path(report[1]))  # drawing the report takes as long as all this
    first, second = (line for line in lines if line["kind"] == "refresh")
    before, after = (line for line in lines if line["kind"] == "evaluation")
    # most responses of the untrained model do not end within 16 tokens, and get 0
    assert second["behavior_reward"] > first["behavior_reward"] + 0.1
    assert after["reward"] > before["reward"] + 0.05
    for line in lines:
        if line["kind"] in ("refresh", "evaluation"):
            assert 0 < line["rewards/numeric/mean"] < 1 and 0 < line["rewards/short/mean"] <= 0.2
    evaluated = sum(line["problems"] * line["samples"] for line in (before, after))
    assert (first["rollouts"] + second["rollouts"], evaluated) == (12 * 4 * 8, 2 * 10 * 4)
