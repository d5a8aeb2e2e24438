"""A run with a private value: where it is kept, and what resumes without it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from shutil import copytree, ignore_patterns

from mugrpo.config.options import HIDDEN
from tests.faults.harm import refused
from tests.runs import CONFIG, Command, Ended

pytest_plugins = ["tests.run_fixtures"]

SETTING = """
[task]
name = "dataset"
data = "{folder}/sums.jsonl"
rewards = ["environment"]
eval_share = 0.15
[environment]
name = "{folder}/asks.py:asks"
workers = 1
kwargs = {{ key = "pass-word", n = 1 }}
"""
ENVIRONMENT = """
def asks(messages, key, n):
    assert key in ("pass-word", "another")
    return 1.0 if len(messages) % 2 else 0.0
"""


def accepted(ended: Ended) -> None:
    assert (ended.status, "pass-word" in ended.out + ended.err) == (0, False), ended


def test_a_private_value_stays_in_one_file(command: Command, tmp_path: Path):
    rows = [{"prompt": f"{n % 9 + 1}+{n % 7}=", "answer": "0"} for n in range(28)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "asks.py").write_text(ENVIRONMENT)
    own = "[task]\ntrain_problems = 24\neval_problems = 4\n"
    assert own in CONFIG
    (tmp_path / "it.toml").write_text(CONFIG.replace(own, SETTING.format(folder=tmp_path)))
    run = tmp_path / "run"
    ended = command("generate", tmp_path / "it.toml", "--run-dir", run, "--stage", 0)
    accepted(ended)
    assert stat.S_IMODE((run / "private.json").stat().st_mode) == 0o600
    holders = [f.name for f in run.rglob("*") if f.is_file() and b"pass-word" in f.read_bytes()]
    assert holders == ["private.json"]
    kwargs = json.loads((run / "config.json").read_text())["config"]["environment"]["kwargs"]
    assert kwargs == {"key": HIDDEN, "n": 1}
    accepted(command("score", run, "--stage", 0))  # the value comes from there
    another = command("score", run, "--stage", 0, "--environment.kwargs.key", "another")
    refused(another, "environment.kwargs.key, which is private")
    assert "another" not in another.err and "pass-word" not in another.err

    copytree(run, tmp_path / "copy", ignore=ignore_patterns("private.json"))
    score = ("score", tmp_path / "copy", "--stage", 0, "--trust")
    accepted(command(*score))  # which needs no environment
    accepted(command(*score, "--environment.kwargs.key", "pass-word"))
    assert (tmp_path / "copy" / "private.json").exists()
