"""The short form of tests/targets/test_slurm.py: one stage, two parts, one of which is killed."""

from functools import partial
from pathlib import Path

import pytest

from tests.runs import CONFIG, mugrpo, write_config
from tests.slurm_cluster import cluster, lead_to, missing
from tests.targets.test_slurm import Jobs, assert_same_at_end, cancel


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_stage_whose_part_is_cancelled_is_finished_by_the_next_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = write_config(tmp_path / "config", CONFIG.replace("stages = 2", "stages = 1"))
    alone, run = tmp_path / "alone", tmp_path / "run"
    assert mugrpo("train", config, "--run-dir", alone).status == 0
    with cluster(1) as slurm:
        jobs, part = Jobs(slurm, run, tmp_path / "jobs"), "generate-0-1"
        jobs.hold(part, "engine batch 1")
        words = ("submit", config, "--run-dir", run, "--slurm", jobs.toml)
        submit = partial(mugrpo, *words, first=partial(lead_to, str(slurm.conf)))
        assert "3 jobs submitted" in submit().out
        jobs.wait_for(part)
        cancel(jobs, part)
        jobs.release(part)
        jobs.finish()
        assert any("CANCELLED" in line for line in jobs.status(monkeypatch))
        assert submit().status == 0
        jobs.finish()
        assert_same_at_end(run, alone)
