"""A stage with a surplus: its updates take the groups that have right and wrong responses."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.runs import Command, final_weights, finished, read_metrics, shards, write_config

# A stage needs 6 groups and samples 12, in 6 shards. Of the first one's 7 vary.
SURPLUS = ("--sampling.surplus", 2, "--optimizer.lr", "3e-4", "--evaluation.every", 0)


@pytest.fixture(scope="module")
def surplus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run and what it said."""
    run_dir = tmp_path_factory.mktemp("surplus") / "run"
    return run_dir, finished(run_dir, *SURPLUS).out


def rights(run_dir: Path) -> list[int]:
    """Return the number of right responses of each group of the first stage."""
    counts = []
    for shard in range(6):
        rows: list[dict[str, Any]] = pq.read_table(
            run_dir / f"stages/000/scores/shard-{shard:05d}.parquet"
        ).to_pylist()
        statuses = [row["status"] for row in rows]
        counts += [statuses[start : start + 4].count("right") for start in (0, 4)]
    return counts


def test_updates_take_the_groups_that_vary_in_the_order_of_the_draws(surplus):
    run_dir, said = surplus
    varying = [count for count in rights(run_dir) if 0 < count < 4]
    lines = read_metrics(run_dir)
    updates = [line for line in lines if line["kind"] == "update"]
    assert [line["zero_variance_share"] for line in updates] == [0] * 6
    # an update has 2 groups of 4; a right response is worth 1
    pairs = [sum(varying[start : start + 2]) / 8 for start in (0, 2, 4)]
    assert [line["batch_reward"] for line in updates[:3]] == pairs
    assert f"stage 0: {len(varying)} of 12 groups vary, 6 are taken\n" in said
    refreshes = [line for line in lines if line["kind"] == "refresh"]
    assert [(line["update"], line["rollouts"]) for line in refreshes] == [(0, 48), (3, 48)]
    assert refreshes[0]["zero_variance_share"] == pytest.approx(1 - len(varying) / 12)


@pytest.mark.long
def test_phase_by_phase_gives_the_bits_of_train(surplus, tmp_path: Path, command: Command):
    run_dir = tmp_path / "run"
    words = [write_config(tmp_path / "config"), "--run-dir", run_dir, *SURPLUS]
    for stage in (0, 1):
        for phase in ("generate", "score", "optimize"):
            assert command(phase, *words, "--stage", stage).status == 0
    assert final_weights(run_dir) == final_weights(surplus[0])
    ours, theirs = (
        {k: v for k, v in shards(d).items() if "stages" in k} for d in (run_dir, surplus[0])
    )
    assert ours == theirs
