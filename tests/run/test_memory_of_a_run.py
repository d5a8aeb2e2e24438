from shutil import disk_usage

import pytest

from mugrpo.config.load import build_config
from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.run.memory import GIB, require_room
from tests.runs import ROOT

HALF_A_BILLION = {
    "path": str(ROOT / "configs" / "recipes" / "forms" / "qwen2.5-0.5b"),
    "precision": "fp32",
}


def test_weights_gradients_and_moments_that_do_not_fit_are_refused(monkeypatch, tmp_path):
    """494 million parameters take 16 bytes each: 7.4 GiB. Under an adapter they take 4."""

    def room(**options: object) -> str:
        config = build_config({"model": HALF_A_BILLION, **options}, "test")
        return require_room(config, RunDir(tmp_path))

    monkeypatch.setattr("mugrpo.run.memory.host_memory", lambda: 7 * GIB)
    with pytest.raises(UsageError, match=r"take 7\.4 GiB of memory, which has 7\.0: .*lora\.rank"):
        room()
    room(lora={"rank": 8})
    monkeypatch.setattr("mugrpo.run.memory.host_memory", lambda: 8 * GIB)
    room()


@pytest.mark.parametrize(
    ("checkpoint", "warned"),
    [
        ({}, "warning: 6 checkpoints take 28 GiB more, and 24 are free"),
        ({"keep": 2}, ""),  # a third is written before one goes
        ({"keep": 4}, ""),
        ({"every": 16}, ""),  # of 24 updates, after 16 and 24
        ({"every": 3}, "warning: 8 checkpoints take 39 GiB more"),
    ],
)
def test_checkpoints_without_room_are_told_beforehand(monkeypatch, tmp_path, checkpoint, warned):
    """Each takes 12 bytes for each of 494 million parameters: 5.5 GiB. One is there already."""
    monkeypatch.setattr("mugrpo.run.memory.host_memory", lambda: 8 * GIB)
    usage = disk_usage(tmp_path)._replace(free=24 * GIB)
    monkeypatch.setattr("mugrpo.run.memory.shutil.disk_usage", lambda _: usage)
    (tmp_path / "checkpoints/update-000004").mkdir(parents=True)
    schedule = {"stages": 6, "batches_per_stage": 4, "growth": 1}
    raw = {"model": HALF_A_BILLION, "checkpoint": checkpoint, "schedule": schedule}
    found = require_room(build_config(raw, "test"), RunDir(tmp_path))
    assert found.startswith(warned) and bool(found) == bool(warned)
