"""A clock that jumps, seeds, and truncated responses."""

import itertools
import json
import time
from pathlib import Path

import pytest

from mugrpo.disk.shards import ShardSet, read_rollouts
from tests.cases import table
from tests.runs import Command, assert_same, read_metrics, write_config


@pytest.mark.long
def test_a_clock_that_jumps_back_changes_neither_order_nor_durations(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, reference: Path
):
    hours = itertools.count(1_700_000_000, -3600)
    monkeypatch.setattr(time, "time", lambda: float(next(hours)))
    monkeypatch.setattr(time, "time_ns", lambda: next(hours) * 10**9)
    run_dir = tmp_path / "run"
    assert command("train", write_config(tmp_path), "--run-dir", run_dir).status == 0
    assert_same(run_dir, reference)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    durations = [v for line in lines for k, v in line.items() if k.startswith("time/")]
    entries = [json.loads(p.read_text()) for p in run_dir.rglob("shard-*.json")]
    durations += [entry["shard"]["seconds"] for entry in entries]
    assert len(durations) > 30 and all(0 <= seconds < 60 for seconds in durations)


def sampled(run_dir: Path) -> dict[tuple[str, int, int], tuple[int, list[int]]]:
    """Map (problem, occurrence, sample) to seed and tokens, for the first stage."""
    rollouts = ShardSet(run_dir / "stages" / "000" / "rollouts", "rollouts")
    return {
        (r.problem_id, r.occurrence, r.sample): (r.seed, r.response_ids.tolist())
        for shard in rollouts.numbers()
        for r in read_rollouts(rollouts, shard)
    }


@table(
    ("option", "value", "count"),
    [("rollouts.shard_rollouts", 24, 1), ("engine.slots", 7, 3)],
    first=1,
)
def test_seeds_and_tokens_do_not_depend_on_shards_or_batches(
    reference: Path, tmp_path: Path, command: Command, option: str, value: int, count: int
):
    words = ["generate", write_config(tmp_path), "--run-dir", tmp_path / "run", "--stage", 0]
    assert command(*words, f"--{option}", value).status == 0
    assert len(list(tmp_path.glob("run/stages/000/rollouts/*.parquet"))) == count
    made = sampled(tmp_path / "run")
    assert len(made) == 24 and len({seed for seed, _ in made.values()}) == 24
    assert made == sampled(reference)


@table("truncated", ["masked", "zero"], first=1)
def test_truncated_responses_are_counted_and_score_zero_or_are_left_out(
    tmp_path: Path, command: Command, truncated: str
):
    run_dir = tmp_path / "run"
    words = ["train", write_config(tmp_path), "--run-dir", run_dir]
    words += ["--rewards.truncated", truncated]
    words += ["--schedule.stages", 1, "--evaluation.every", 0, "--rollouts.temperature", 3]
    ended = command(*words)
    assert ended.status == 0
    folder = run_dir / "stages" / "000"
    made, judged = (ShardSet(folder / kind, kind) for kind in ("rollouts", "scores"))
    rollouts = [r for shard in range(3) for r in read_rollouts(made, shard)]
    rows = [row for shard in range(3) for row in judged.open(shard).read().to_pylist()]
    cut = [len(r.response_ids) == 8 and r.response_ids[-1] != 1 for r in rollouts]
    assert 2 < sum(cut) < 22
    assert [row["status"] == "truncated" for row in rows] == cut
    assert all(row["reward"] == 0.0 for row, was_cut in zip(rows, cut, strict=True) if was_cut)
    updates = [line for line in read_metrics(run_dir) if line["kind"] == "update"]
    assert [line["truncated_share"] for line in updates] == [
        sum(cut[start : start + 8]) / 8 for start in (0, 8, 16)
    ]
