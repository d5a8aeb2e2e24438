"""Rollouts as a data set: what `datasets` reads, and that an import has the same bits."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from mugrpo.disk.records import Rollout, Score
from mugrpo.disk.shards import ShardSet, read_rollouts, score_from_row
from mugrpo.extensions.exchange.rows import FIELDS
from tests.extensions.exchange.imports import CONFIG, config_in, imported
from tests.runs import Command


@pytest.fixture
def exported(reference: Path, tmp_path: Path, command: Command) -> Path:
    """The data set of a run's two stages, 24 rollouts each."""
    ended = command("export", reference, tmp_path / "set")
    assert ended.status == 0 and f"48 rollouts in {tmp_path / 'set'}\n" in ended.out
    return tmp_path / "set"


def on_disk(run_dir: Path, stage: int) -> list[tuple[Rollout, Score]]:
    folders = [run_dir / f"stages/{stage:03d}" / kind for kind in ("rollouts", "scores")]
    rollouts, scores = (ShardSet(folder, folder.name) for folder in folders)
    pairs = []
    for shard in rollouts.numbers():
        rows = scores.open(shard).read().to_pylist()
        pairs += zip(read_rollouts(rollouts, shard), map(score_from_row, rows), strict=True)
    return pairs


def bits(rollout: Rollout, score: Score) -> tuple[Any, ...]:
    """Return what an import must keep."""
    arrays = (rollout.prompt_ids, rollout.response_ids, rollout.behavior_logprobs)
    facts = (rollout.seed, rollout.finish_reason, rollout.temperature, rollout.policy_step)
    reward = np.float64(score.reward).tobytes()
    return (*(array.tobytes() for array in arrays), *facts, reward, score.status, str(score.parts))


def test_the_data_set_is_read_by_datasets(exported: Path, reference: Path):
    rows = datasets.load_dataset(str(exported), split="train", cache_dir=str(exported / "cache"))
    assert {"stage", *FIELDS} - set(rows.column_names) == {"loss_mask", "turns", "environment"}
    expected = [(stage, *pair) for stage in (0, 1) for pair in on_disk(reference, stage)]
    assert len(rows) == len(expected) == 48
    for row, (stage, rollout, score) in zip(rows, expected, strict=True):
        assert (row["stage"], row["problem_id"]) == (stage, rollout.problem_id)
        assert row["response_ids"] == rollout.response_ids.tolist()
        assert row["logprobs"] == rollout.behavior_logprobs.tolist()
        assert (row["reward"], row["status"]) == (score.reward, score.status)
        assert row["finish_reason"] == rollout.finish_reason
        assert row["prompt"] == rollout.problem_id  # which is the text itself in this task
        assert (row["answer"] == score.parts.get("answer")) == (score.reward == 1)


@pytest.mark.parametrize("stages", [(1,), (0, 1)])
def test_an_import_of_an_export_has_the_same_bits(reference, tmp_path, command, stages):
    only = ("--stage", stages[0]) if len(stages) == 1 else ()
    assert command("export", reference, tmp_path / "set", *only).status == 0
    text = CONFIG + (reference.parent / "config" / "tiny.toml").read_text().partition("[prompt]")[2]
    text = text.replace(CONFIG, f"{CONFIG}\n[prompt]")
    options = ("--run-dir", tmp_path / "run", "--rollouts.temperature", 1.3)
    ended = command("import", config_in(tmp_path, text), tmp_path / "set", *options)
    assert (ended.status, ended.err) == (0, "")
    source = [bits(*pair) for stage in stages for pair in on_disk(reference, stage)]
    assert sorted(bits(*pair) for pair in imported(tmp_path / "run").values()) == sorted(source)
