import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mugrpo.cli import main
from mugrpo.disk.metrics import read_metrics
from mugrpo.tasks.embedded import running_states
from tests.runs import Command


def test_accuracy_is_the_share_right_and_the_mean_reward_is_separate(tmp_path: Path):
    """Every right response has the reward 3 x 1, so the mean is three times the accuracy."""
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
    document = json.loads((tmp_path / "run" / "samples" / "evaluation-000000.json").read_text())
    answers = {row["prompt"]: row["answer"] for row in rows}
    shown = [(one["prompt"], one["reference"]) for one in document["samples"]]
    assert len(shown) == min(4, line["problems"]) and set(shown) <= answers.items()
    assert all(len(one["group"]) == 8 for one in document["samples"])


@pytest.mark.parametrize("update", [0, 3, 6])
def test_a_process_that_only_evaluates_measures_the_checkpoint(
    reference: Path, tmp_path: Path, command: Command, update: int
):
    """Its answers are those of the run that trained: the same weights, the same seeds."""
    run_dir = Path(shutil.copytree(reference, tmp_path / "run"))
    before = evaluated(run_dir, update)
    assert before != evaluated(run_dir, {0: 6, 3: 0, 6: 0}[update])
    ended = command("evaluate", run_dir, "--update", update)
    assert ended.status == 0, ended
    assert evaluated(run_dir, update) == before


def evaluated(run_dir: Path, update: int) -> list[dict[str, Any]]:
    path = run_dir / f"evaluations/update-{update:06d}/rollouts/shard-00000.parquet"
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    for row in rows:
        del row["policy_step"]
    return rows


@pytest.mark.long
def test_first_and_last_evaluation_have_their_own_samples_and_greedy_responses(tmp_path: Path):
    """Greedy responses are a shard of their own; the entropy is that of the samples."""
    (tmp_path / "c.toml").write_text(
        """
        [task]
        eval_problems = 24
        [schedule]
        stages = 1
        batches_per_stage = 1
        problems_per_update = 1
        group_size = 2
        [evaluation]
        end_samples = 3
        greedy = true
        """
    )
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "c.toml"), "--run-dir", str(run)]) == 0
    first, last = (x for x in read_metrics(run / "metrics.jsonl") if x["kind"] == "evaluation")
    for line in (first, last):
        assert line["samples"] == 3 and line["pass@3"] >= line["accuracy"]
        folder = run / f"evaluations/update-{line['update']:06d}"
        rows = pq.read_table(folder / "rollouts/shard-00000.parquet").to_pylist()
        assert len(rows) == 24 * line["samples"]
        assert {row["temperature"] for row in rows} == {1.0}
        logprobs = [p for row in rows for p in row["behavior_logprobs"]]
        assert line["entropy"] == pytest.approx(-sum(logprobs) / len(logprobs))
        greedy = pq.read_table(folder / "rollouts/shard-00001.parquet").to_pylist()
        assert len(greedy) == 24 and {row["temperature"] for row in greedy} == {0.01}
        statuses = pq.read_table(folder / "scores/shard-00001.parquet")["status"].to_pylist()
        assert line["greedy/accuracy"] == statuses.count("right") / 24
        assert line["greedy/samples"] == 1
        # the most likely responses of this model are right more often than its samples
        assert line["greedy/accuracy"] > line["accuracy"]
