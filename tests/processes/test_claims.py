"""Claims: one process at a time, and the next one if its holder is lost."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mugrpo.disk.publishing import LOST_AFTER, machine, remove_unfinished
from mugrpo.processes import claims as claims_module
from mugrpo.processes import launcher
from mugrpo.processes.claims import Claims, claims_in, forget_claims
from tests.cases import table
from tests.waiting import until

HERE = {"host": "n1", "machine": machine(), "pid": os.getpid(), "job": "", "restarts": 0}
AWAY = {**HERE, "machine": "another!"}


def claimed(folder: Path, name: str = "a", *, age: float = 0.0, **said: object) -> Path:
    """Write a claim whose holder was last seen `age` seconds ago."""
    path = folder / f"{name}.claim-0"
    path.write_text(json.dumps({**AWAY, **said}))
    os.utime(path, (time.time() - age,) * 2)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_claim_keeps_others_away_until_it_is_given_back(tmp_path: Path):
    mine, theirs = Claims(tmp_path, part="3/16"), Claims(tmp_path)
    assert mine.take("a") and not theirs.take("a") and theirs.take("b")
    assert names(tmp_path) == ["a.claim-0", "b.claim-0"]
    first, _ = claims_in(tmp_path)
    assert (first.name, first.attempt, first.said["part"]) == ("a", 0, "3/16")
    assert first.holder().endswith(f"(pid {os.getpid()})") and not first.lost()
    mine.give_back("a")
    assert theirs.take("a")
    mine.close()
    theirs.close()
    assert names(tmp_path) == []


def test_the_claim_of_a_killed_process_is_taken_over_at_once(tmp_path: Path):
    code = "import os, sys; from pathlib import Path; from mugrpo.processes.claims import Claims; "
    code += "Claims(Path(sys.argv[1])).take('a'); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == 9
    assert names(tmp_path) == ["a.claim-0"]
    mine = Claims(tmp_path)
    assert mine.take("a") and not Claims(tmp_path).take("a")
    assert names(tmp_path) == ["a.claim-0", "a.claim-1"]
    mine.give_back("a")
    assert names(tmp_path) == ["a.claim-0"]  # whose holder might come back
    forget_claims(tmp_path)
    assert names(tmp_path) == []


# (what a claim says, seconds since its last sign of life, whether it can be taken over)
STATES = [
    (AWAY, LOST_AFTER - 10, False),
    (AWAY, LOST_AFTER + 10, True),
    ({**HERE, "started": "0"}, 0, True),  # its process id is another process's by now
    ({**HERE, "pid": 2**22 + 1}, 0, True),  # above what a kernel gives
    ({**AWAY, "job": "7", "restarts": 0}, 0, True),  # this job, before it was requeued
    ({**AWAY, "job": "7", "restarts": 1}, 0, False),  # another task of this job
    ({**AWAY, "job": "8"}, 60, True),  # squeue does not know it
    ({**AWAY, "job": "8"}, 30, False),  # but it gives signs of life: another cluster's
    ({**AWAY, "job": "9"}, 60, True),  # it waits to be started again
    ({**AWAY, "job": "10"}, 60, False),  # it runs
    ({**AWAY, "job": "11"}, 60, False),  # the scheduler does not answer
]
SQUEUE = """#!/bin/sh
case "$3" in
  8) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;;
  9) echo PENDING;;
  10) echo RUNNING;;
  11) echo "Unable to contact slurm controller" >&2; exit 1;;
esac
"""


@table(("said", "age", "lost"), STATES)
def test_a_claim_is_lost_with_its_process_its_job_or_its_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said, age, lost
):
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(SQUEUE)
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(squeue.parent), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(launcher, "_answers", {})
    folder = tmp_path / "shards"
    folder.mkdir()
    claimed(folder, age=age, **said)
    mine = Claims(folder)
    assert mine.take("a") == lost
    mine.close()
    assert names(folder) == ["a.claim-0"]  # its own alone is removed


def test_one_of_many_takes_over_and_the_lost_one_may_come_back(tmp_path: Path):
    claimed(tmp_path, age=LOST_AFTER + 1)
    many = [Claims(tmp_path) for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(lambda one: one.take("a"), many))
    assert sum(taken) == 1
    one = many[taken.index(True)]
    (tmp_path / "a.claim-0").unlink()  # as the lost one does when it is done
    assert names(tmp_path) == ["a.claim-1"] and not Claims(tmp_path).take("a")
    assert names(tmp_path) == ["a.claim-1"] and one.holds("a")
    claimed(tmp_path).rename(tmp_path / "a.claim-2")
    assert not one.holds("a")  # it has been taken for lost
    one.close()
    assert names(tmp_path) == ["a.claim-2"]


def test_a_holder_shows_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(claims_module, "LOST_AFTER", 0.06)
    mine = Claims(tmp_path)
    assert mine.take("a")
    before = (tmp_path / "a.claim-0").stat().st_mtime_ns
    until(lambda: (tmp_path / "a.claim-0").stat().st_mtime_ns > before)
    mine.close()


def test_a_claim_that_is_being_written_counts(tmp_path: Path):
    (tmp_path / "a.claim-0").touch()
    assert not Claims(tmp_path).take("a")
    forget_claims(tmp_path)
    assert names(tmp_path) == []


@table(
    ("name", "by", "age", "stays"),
    [
        ("stages/000/rollouts/shard-00000.parquet", f"1-{machine()}", 0, True),  # it runs
        ("stages/000/rollouts/shard-00000.parquet", f"{2**22 + 1}-{machine()}", 0, False),
        ("stages/000/rollouts/shard-00000.parquet", "1-abcdef01", LOST_AFTER - 10, True),
        ("stages/000/rollouts/shard-00000.parquet", "1-abcdef01", LOST_AFTER + 10, False),
        ("checkpoints/update-000004", f"1-{machine()}", 0, False),  # only the lock's holder writes
    ],
)
def test_what_a_part_may_still_be_writing_is_not_removed(
    tmp_path: Path, name: str, by: str, age: float, stays: bool
):
    path = tmp_path / f"{name}.tmp.{by}"
    path.parent.mkdir(parents=True)
    path.touch()
    os.utime(path, (time.time() - age,) * 2)
    assert remove_unfinished(tmp_path) == ([] if stays else [path])
    assert path.exists() == stays
