"""A process that prints without end fills no disk, and notices nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mugrpo
from mugrpo.processes import logs
from mugrpo.processes.lifetime import DRIVER, driver_name
from mugrpo.processes.logs import limited_logs
from tests.runs import write_config
from tests.waiting import until

PRINTS = """
import sys
sys.stdout.write("x" * 5000)
sys.stdout.flush()
sys.stdin.readline()
sys.stdout.write("the end")
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LONGEST", 4000)
    monkeypatch.setattr(logs, "_LOOK", 0.01)


def test_a_log_that_grows_too_long_begins_again_while_its_process_prints(tmp_path: Path):
    rank, short = tmp_path / "ranks" / "0" / "stderr.log", tmp_path / "engine-0.log"
    rank.parent.mkdir(parents=True)
    short.write_text("y" * 4000)
    with open(rank, "ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", PRINTS], stdin=subprocess.PIPE, stdout=file, text=True
        )
    with limited_logs(tmp_path):
        until(lambda: rank.read_bytes().startswith(b"mugrpo removed"))
        process.communicate("\n")
        assert process.returncode == 0
    assert rank.read_text() == "mugrpo removed 5000 bytes of this log\nthe end"
    assert short.read_text() == "y" * 4000


def test_what_was_printed_last_is_limited_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "_LOOK", 1000)
    log = tmp_path / "rank-0.err"
    with limited_logs(tmp_path):
        log.write_text("x" * 4001)
    assert log.read_text() == "mugrpo removed 4001 bytes of this log\n"


def test_a_folder_that_is_removed_while_it_is_listed_disturbs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log, ranks, listed = tmp_path / "engine-0.log", tmp_path / "ranks", os.scandir

    def removed_first(path: Any) -> Any:
        if ranks == Path(path):
            ranks.rmdir()
        return listed(path)

    ranks.mkdir()
    monkeypatch.setattr(os, "scandir", removed_first)
    with limited_logs(tmp_path):
        until(lambda: not ranks.exists())
        log.write_text("x" * 4001)
        until(lambda: log.stat().st_size < 4001, seconds=10)


def test_the_logs_of_an_open_run_are_limited(tmp_path: Path):
    with mugrpo.open_run(write_config(tmp_path), run_dir=tmp_path / "run") as run:
        log = run.folder.log("engine-0")
        log.parent.mkdir()
        log.write_text("x" * 4001)
        until(lambda: log.stat().st_size < 4001)


JOINS = """
import fcntl, os
from mugrpo.processes.ranks import joined
with joined("optimize"):
    appends = fcntl.fcntl(1, fcntl.F_GETFL) & os.O_APPEND
print(bool(appends), flush=True)
"""


def test_ranks_that_a_run_has_started_append_to_their_logs(tmp_path: Path):
    environment = {**os.environ, DRIVER: driver_name()}
    for begins, appends in ((environment, "True"), (os.environ, "False")):
        with open(tmp_path / "stdout.log", "wb") as out:
            subprocess.run([sys.executable, "-c", JOINS], stdout=out, env=begins, check=True)
        assert (tmp_path / "stdout.log").read_text() == f"{appends}\n"
