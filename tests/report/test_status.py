"""What `mugrpo status` says of shards, parts and claims, worked out by hand."""

import json
import os
import time
from pathlib import Path

from mugrpo.disk.publishing import publish_json, with_checksum
from mugrpo.disk.run_dir import RunDir
from tests.faults.harm import refused
from tests.runs import Command, write_config

# Two of a stage's shards: what made each, its tokens and seconds.
MADE = {0: ("0/2", "n1", 1000, 2.0), 1: ("1/2", "n2", 900, 3.0)}


def write_entries(folder: Path) -> None:
    folder.mkdir(parents=True)
    for shard, (part, host, tokens, seconds) in MADE.items():
        entry = {"rows": 8, "bytes": 1, "sha256": "", "tokens": tokens, "seconds": seconds}
        entry |= {"part": part, "host": host}
        document = with_checksum({"kind": folder.name, "shard": entry})
        publish_json(folder / f"shard-{shard:05d}.json", document)


def claim(folder: Path, shard: int, part: str, age: float, **said: object) -> None:
    path = folder / f"shard-{shard:05d}.claim-0"
    about = {"host": "n1", "machine": "elsewhere", "pid": 7, "job": "", "part": part, **said}
    path.write_text(json.dumps({**about, "since": "2026-01-01 10:00:00"}))
    os.utime(path, (time.time() - age,) * 2)


def test_status_names_parts_claims_and_what_comes_next(tmp_path, command: Command, monkeypatch):
    """Of 24 shards, part 0/2 has one made in 2 s, and 11 left: 22 s. Part 1/2 is lost."""
    config, run = write_config(tmp_path / "config"), tmp_path / "run"
    words = (config, "--run-dir", run, "--schedule.batches_per_stage", 24)
    assert command("generate", *words, "--part", "99/100").status == 0  # it has no shard
    folder = RunDir(run).shards(0, "rollouts")
    write_entries(folder)
    claim(folder, 2, "0/2", 5)
    claim(folder, 3, "1/2", 605, job="12")
    (folder / "shard-00003.claim-0").rename(folder / "shard-00003.claim-1")
    assert command("status", run).out.splitlines() == [
        f"{run}: 0 of 48 updates are saved",
        "stage 0 (last: 1), up to update 24",
        "  rollouts  2 of 24 shards, about 22 seconds left",
        "    part 0/2  1 shards  500 tokens/s  n1",
        "      shard-00002: n1 (pid 7) at work, since 2026-01-01 10:00:00",
        "    part 1/2  1 shards  300 tokens/s  the slowest  n2",
        "      shard-00003: n1 (pid 7, job 12) LOST, last seen 10 minutes ago, since "
        "2026-01-01 10:00:00, taken over 1 times",
        "  scores  0 of 24 shards",
    ]
    assert command("report", run, "--out", tmp_path / "page.html").status == 0
    assert "part 0/2  1 shards  500 tokens/s  n1" in (tmp_path / "page.html").read_text()
    (folder / "shard-00002.claim-0").unlink()
    claim(folder, 0, "0/2", 5)  # of a shard that is there: a killed process has left it
    last = command("status", run).out.splitlines()[-1]
    assert last == f"next: mugrpo generate {run} --stage 0"
    jobs = {
        "parts": 2,
        "words": [],
        "jobs": [{"job": "7", "phase": "score", "stage": 0, "parts": [1]}],
    }
    publish_json(run / "slurm" / "jobs.json", jobs)  # with jobs, they come next
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command("status", run).out.splitlines()[-2:] == [
        "  scores  0 of 24 shards",
        "Slurm: no squeue here; log in where jobs are submitted to see them",
    ]


def test_status_of_a_run_that_is_finished_or_none(reference: Path, tmp_path, command: Command):
    assert command("status", reference).out.splitlines() == [
        f"{reference}: 6 of 6 updates are saved",
        f"next: mugrpo report {reference}",
    ]
    refused(command("status", tmp_path), f"{tmp_path} is not a run; name a run's directory")
    refused(command("status", tmp_path / "no"), f"{tmp_path / 'no'} does not exist; name a run's")
