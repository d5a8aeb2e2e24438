"""Dynamic sampling: rounds until every update has groups with right and wrong responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.faults.harm import refused
from tests.runs import Command, final_weights, finished, read_metrics, shards, write_config

pytest_plugins = ["tests.run_fixtures"]

# A stage needs 6 groups. The first samples 12 of them, in 6 shards and 4 rounds; the second 6.
DYNAMIC = ("--sampling.name", "dynamic", "--optimizer.lr", "3e-4")


def table(run_dir: Path, kind: str, shard: int = 0) -> list[dict[str, Any]]:
    path = run_dir / f"stages/000/{kind}/shard-{shard:05d}.parquet"
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("dynamic") / "run"
    finished(run_dir, *DYNAMIC)
    return run_dir


def test_the_groups_are_those_that_vary_in_the_order_they_were_sampled(dynamic: Path):
    """Twelve problems are drawn from one epoch of 24: no batch has to wait for another problem."""
    varied: list[tuple[int, int]] = []  # the shard and the first row of each group
    for shard in range(6):
        statuses = [row["status"] for row in table(dynamic, "scores", shard)]
        for start in (0, 4):
            right = statuses[start : start + 4].count("right")
            varied += [(shard, start)] * (0 < right < 4)
    made = [(place["shard"], place["row"]) for place in table(dynamic, "plan")]
    assert len(varied) == 7
    assert made == [(shard, start + row) for shard, start in varied[:6] for row in range(4)]
    lines = read_metrics(dynamic)
    assert [line.get("zero_variance_share") for line in lines if line["kind"] == "update"] == [
        0
    ] * 6
    refreshes = [line for line in lines if line["kind"] == "refresh"]
    assert [(line["update"], line["rollouts"]) for line in refreshes] == [(0, 48), (3, 24)]
    assert refreshes[0]["zero_variance_share"] == pytest.approx(5 / 12)


# A shard is two engine batches. The first round of stage 0 is three shards, each later one is one.


@pytest.mark.long
def test_phase_by_phase_gives_the_bits_of_train(dynamic: Path, tmp_path: Path, command: Command):
    run_dir = tmp_path / "run"
    words = [write_config(tmp_path / "config"), "--run-dir", run_dir, *DYNAMIC]
    for stage, rounds in ((0, 4), (1, 1)):
        for number in range(rounds):
            if number:
                have = f"stage 0 has {2 + number} of {3 + number} shards of rollouts; run `mugrpo"
                refused(command("optimize", *words), have)
            assert command("generate", *words).status == 0
            assert command("score", *words).status == 0
        assert command("optimize", *words, "--stage", stage).status == 0
    assert final_weights(run_dir) == final_weights(dynamic)
    ours, theirs = (
        {k: v for k, v in shards(d).items() if "stages" in k} for d in (run_dir, dynamic)
    )
    assert ours == theirs
