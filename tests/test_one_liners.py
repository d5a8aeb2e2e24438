"""The example of one-line functions: its config loads, and its solutions pass its tests."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import pytest

from mugrpo.config.load import load_config
from mugrpo.config.tasks import DatasetOptions
from mugrpo.extensions.code import CodeOptions
from mugrpo.extensions.code.cases import Returned, read_tests
from mugrpo.tasks.dataset import Dataset
from tests.runs import ROOT

FILES = ROOT / "examples" / "one_liners"


def test_the_script_writes_the_problems(tmp_path: Path):
    shutil.copy(FILES / "make.py", tmp_path)
    runpy.run_path(str(tmp_path / "make.py"), run_name="__main__")
    assert (tmp_path / "problems.jsonl").read_text() == (FILES / "problems.jsonl").read_text()


def test_the_config_reads_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(FILES)
    options = load_config("one_liners.toml").task
    assert isinstance(options, DatasetOptions)
    assert options.rewards == (CodeOptions(partial=True, timeout=2),)
    task = Dataset(options)
    problems = [*task.train_problems(), *task.eval_problems()]
    assert len(problems) == 232 and len(task.eval_problems()) > 40


def test_results_by_hand():
    """The tests of "3 times x plus 2" say so, and no prompt shows any of them."""
    rows = map(json.loads, (FILES / "problems.jsonl").read_text().splitlines())
    prompts = {row["prompt"]: read_tests(json.dumps(row["tests"])).cases for row in rows}
    (cases,) = (cases for prompt, cases in prompts.items() if " 3 times x plus 2." in prompt)
    assert len(cases) == 5
    for case in cases:
        assert isinstance(case, Returned)
        assert case.expected == 3 * case.job["arguments"][0] + 2
