"""Plans on disk: places come back as they were written."""

from __future__ import annotations

import pandas as pd

from mugrpo.disk.shards import Place, ShardSet, read_plan, write_plan


def test_a_plan_comes_back_as_it_was_written(tmp_path):
    batches = [  # uneven, and a row used twice
        [Place(0, 3), Place(1, 0), Place(0, 2)],
        [Place(2, 7)],
        [Place(0, 3), Place(0, 4)],
    ]
    write_plan(ShardSet(tmp_path, "plan"), batches, groups=[2, 1, 2])
    assert read_plan(ShardSet(tmp_path, "plan")) == batches
    table = pd.read_parquet(tmp_path / "shard-00000.parquet")
    assert table["batch"].tolist() == [0, 0, 0, 1, 2, 2]
    assert table["shard"].tolist() == [0, 1, 0, 2, 0, 0]
    assert table["row"].tolist() == [3, 0, 2, 7, 3, 4]
