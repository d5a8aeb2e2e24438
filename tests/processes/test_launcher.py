"""Ranks from the variables of torchrun and srun."""

import os
from pathlib import Path

import pytest

from mugrpo.processes.launcher import launched_ranks
from mugrpo.processes.lifetime import follows
from tests.cases import refusal, table

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
TORCHRUN |= {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
# a batch script of four tasks, and then a step of it
BATCH = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
STEP = {**BATCH, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
SCONTROL = '#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n"\n'


@table(
    ("said", "rank", "meeting", "is_rank"),
    [
        ({}, None, None, False),
        (TORCHRUN, ("3", "4", "1"), ("n1", "29500"), True),
        ({**TORCHRUN, "RANK": "0"}, ("0", "4", "1"), ("n1", "29500"), False),  # it is the run
        ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, None, None, False),
        (BATCH, None, None, False),
        ({**STEP, "SLURM_STEP_NODELIST": "n7"}, ("3", "4", "1"), ("n7", "24711"), True),
        ({**STEP, "SLURM_STEP_NODELIST": "n[1-2]"}, ("3", "4", "1"), ("n1", "24711"), True),
    ],
)
def test_a_process_knows_its_rank_from_its_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said, rank, meeting, is_rank
):
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    found = launched_ranks()
    if rank is None:
        assert found is None
    else:
        assert found is not None
        assert tuple(found[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")) == rank
        assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == meeting
    assert follows() == is_rank


@table(
    ("said", "words"),
    [
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE is 2, but LOCAL_RANK is not set"),
        ({**STEP, "SLURM_STEP_NODELIST": "n[8-9]"}, "scontrol does not say which machines n[8-9]"),
    ],
)
def test_a_launcher_that_says_half_is_refused(tmp_path: Path, monkeypatch, said, words):
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert words in refusal(launched_ranks, said)
