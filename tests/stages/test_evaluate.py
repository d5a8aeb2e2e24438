from __future__ import annotations

import json
from pathlib import Path

import pytest

from mugrpo.cli import main
from mugrpo.disk.metrics import read_metrics
from mugrpo.tasks.chain import running_states


def test_accuracy_is_the_share_right_and_the_reward_is_told_beside_it(tmp_path: Path):
    """Every right response has 3 x 1, so the mean reward is three times the accuracy."""
    prompts = [f"{a}+{b}-1+{b}=" for a in range(1, 4) for b in range(1, 4)]
    rows = [{"prompt": p, "answer": str(running_states(p)[-1])} for p in prompts]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "c.toml").write_text(
        f"""
        [task]
        name = "dataset"
        data = "{tmp_path / "p.jsonl"}"
        eval_share = 0.5
        rewards = [{{name = "regex", pattern = "=(\\\\d)$", weight = 3.0}}]
        [schedule]
        problems_per_update = 1
        [evaluation]
        samples = 8
        """
    )
    assert main(["evaluate", str(tmp_path / "c.toml"), "--run-dir", str(tmp_path / "run")]) == 0
    (line,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert line["status/right"] > 0 and line["status/wrong"] + line["status/no_answer"] > 0
    assert line["accuracy"] == line["status/right"] / (8 * line["problems"])
    assert line["reward"] == pytest.approx(3 * line["accuracy"])
