"""A full disk."""

import re
from pathlib import Path

import pytest

from tests.cases import some
from tests.faults.harm import resume_words, stopped
from tests.runs import (
    State,
    assert_same,
    checkpoints,
    final_weights,
    finished,
    mugrpo,
    read_metrics,
    state,
    train,
)

SHARD, CHECKPOINT = "stages/000/rollouts/shard-00001.parquet", "checkpoints/update-000004"


@pytest.mark.promise("full disk")
@pytest.mark.parametrize(
    ("place", "nth", "spare", "target", "on_disk"),
    some(
        1,
        [
            # In the second batch of the second shard; no room is left.
            ("engine batch", 4, 0, SHARD, State((1, 0), (0, 0), (), "evaluation 0")),
            # 3 MB are left: enough for the model (2.1 MB), too little for the optimizer (4.2 MB).
            ("gradient", 4, 3_000_000, CHECKPOINT, State((3, 3), (3, 3), (2,), "update 4")),
        ],
    ),
)
def test_a_full_disk_stops_the_run_with_path_and_bytes_and_with_room_it_resumes(
    reference: Path, small_disk: Path, place: str, nth: int, spare: int, target: str, on_disk: State
):
    run_dir, filler = small_disk / "run", small_disk / "filler"
    ended = train(run_dir, at=place, nth=nth, act=f"fill {filler} {spare}")
    stopped(ended, f"the disk is full: {run_dir / target} needs more than ")
    found = re.search(r"than ([\d,]+) bytes, and ([\d,]+) bytes are free now", ended.err)
    assert found is not None
    written, free = (int(number.replace(",", "")) for number in found.groups())
    assert written <= spare <= free + 16384  # the partial file was removed
    assert state(run_dir) == on_disk
    filler.unlink()
    assert mugrpo(*resume_words(ended)).status == 0
    assert_same(run_dir, reference)


@pytest.mark.long
def test_a_metrics_line_that_the_disk_has_no_room_for_stops_the_run(small_disk, tmp_path):
    one_stage = ("--schedule.stages", 1, "--schedule.batches_per_stage", 8)
    options = (*one_stage, "--checkpoint.every", 0, "--evaluation.every", 0)
    run_dir, filler = small_disk / "run", small_disk / "filler"
    ended = train(run_dir, *options, at="gradient", nth=2, act=f"fill {filler} 0")
    stopped(ended, f"the disk is full: {run_dir}/metrics.jsonl needs more than")
    assert checkpoints(run_dir) == []
    filler.unlink()
    assert mugrpo(*resume_words(ended)).status == 0
    finished(tmp_path / "whole", *options)
    assert read_metrics(run_dir) == read_metrics(tmp_path / "whole")
    last = [final_weights(folder, 8) for folder in (run_dir, tmp_path / "whole")]
    assert last[0] == last[1]
