"""Waiting for ranks through a folder that a network may not show, or show late."""

import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from mugrpo.config.run import RunConfig
from mugrpo.disk.publishing import publish_json
from mugrpo.disk.run_dir import Handover, RunDir
from mugrpo.hosts import orders
from mugrpo.hosts.ranks import RankHost
from mugrpo.hosts.weights import hand_over
from mugrpo.optimize.checkpoint import Writing
from mugrpo.processes.ranks import show_log
from tests.stages.builders import run_of


class Working:
    """Ranks that go on working."""

    def running(self) -> bool:
        return True


def test_engines_get_the_ranks_own_files_beside_a_checkpoint_that_is_still_written(tmp_path: Path):
    (tmp_path / "theirs").mkdir()
    theirs: Any = RunDir(tmp_path / "theirs")  # the folder as the first rank sees it
    theirs.pending = SimpleNamespace(update=4, folder=tmp_path / "checkpoint")
    theirs.handover = Handover(4, tmp_path / "model")
    ours = RunDir(tmp_path)
    ours.ranks.mkdir()
    publish_json(ours.ranks / "done.json", asdict(orders._answer(theirs, 1)))
    run = run_of(tmp_path)
    host, ours = RankHost(run), run.folder
    host._job = Working()  # type: ignore[assignment]
    host._obeyed(orders.Order(0, "optimize", 4))
    assert ours.pending and ours.pending.folder == tmp_path / "checkpoint"
    assert hand_over(ours, RunConfig(), None, 4) == str(tmp_path / "model")
    theirs.pending.update = 5  # of a later update, which the model is not of
    answer = orders._answer(theirs, 2)
    assert (answer.update, answer.saved, answer.model) == (5, True, "")


def test_a_rank_cannot_command_the_terminal(tmp_path: Path, capsys):
    log = tmp_path / "rank-0.log"
    log.write_text("update 1\n\x1b[2J\x07update 2\nhalf a li")
    end = show_log(log, 0)
    assert capsys.readouterr().out == "update 1\n\\x1b[2J\\x07update 2\n"
    log.write_text(log.read_text() + "ne\n")
    show_log(log, end)
    assert capsys.readouterr().out == "half a line\n"


def test_a_checkpoint_counts_as_published_when_its_thread_has_freed_the_snapshot(tmp_path: Path):
    """A thread that is in the middle of that when Python ends aborts the process."""
    freed = threading.Event()

    class Freed:
        state: ClassVar = {"update": 8}
        policy = SimpleNamespace(ranks=SimpleNamespace(first=True, rank=0, size=1))

        def write_model(self, folder: Path) -> dict[str, str]:
            return {}

        def write_rest(self, folder: Path) -> dict[str, str]:
            return {}

        def __del__(self) -> None:
            time.sleep(0.2)
            freed.set()

    snapshot: Any = Freed()
    path = RunDir(tmp_path).checkpoint(8)
    pid = os.getpid()
    writing = Writing(snapshot, path, {}, first_pid=pid, then=lambda: None)
    del snapshot
    assert writing.published(wait=True)
    assert freed.is_set()
