"""Waiting for ranks through a folder that a network may not show, or show late."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import publish_json
from mugrpo.disk.run_dir import RunDir, Unsaved
from mugrpo.optimize.checkpoint import Writing
from mugrpo.processes.ranks import show_log
from mugrpo.run.weights import hand_over
from mugrpo.stages import orders, ranks
from mugrpo.stages.orders import Answer
from mugrpo.stages.ranks import RankProcesses, _WrittenByRanks


class Shared:
    """A clock on which a second passes at each look, and ranks that go on working."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.now, self.then = 0.0, then

    def monotonic(self) -> float:
        self.now += 1
        self.then()
        return self.now

    def running(self) -> bool:
        return True


def driven(
    folder: RunDir, shared: Shared, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> RankProcesses:
    """Return the ranks of a run that says `said`, on the clock of `shared`."""
    monkeypatch.setattr("mugrpo.disk.publishing.time", shared)
    monkeypatch.setattr(ranks, "time", SimpleNamespace(sleep=lambda _: None))
    run: Any = SimpleNamespace(
        folder=folder,
        config=RunConfig(),
        progress=SimpleNamespace(say=said.append),
        stop=SimpleNamespace(signal_name=None),
    )
    processes = RankProcesses(run)
    processes._job = shared  # type: ignore[assignment]
    return processes


def test_ranks_whose_folder_does_not_reach_the_run_are_given_up(tmp_path: Path, monkeypatch):
    """They work, but the run sees neither a sign of life nor an answer in its folder."""
    folder, said = RunDir(tmp_path), list[str]()
    (tmp_path / "ranks").mkdir()
    processes = driven(folder, Shared(), said, monkeypatch)
    with pytest.raises(RunStopped, match=f"nothing has changed in {folder.ranks} for 1800 s"):
        processes.optimize(0, 3)
    assert len(said) == 1 and said[0].startswith("waiting for the ranks: nothing has changed")


def test_engines_get_the_ranks_own_files_beside_a_checkpoint_that_is_still_written(
    tmp_path: Path, monkeypatch
):
    (tmp_path / "theirs").mkdir()
    theirs: Any = RunDir(tmp_path / "theirs")  # the folder as the first rank sees it
    theirs.pending = SimpleNamespace(update=4, folder=tmp_path / "checkpoint")
    theirs.unsaved = Unsaved(4, tmp_path / "model")
    ours = RunDir(tmp_path)
    ours.ranks.mkdir()
    publish_json(ours.ranks / "done.json", asdict(orders._answer(theirs, 1)))
    driven(ours, Shared(), [], monkeypatch).optimize(0, 4)
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


def test_a_checkpoint_that_never_appears_is_given_up(tmp_path: Path, monkeypatch):
    folder = RunDir(tmp_path)
    answer = Answer(1, update=75, checkpoint=str(tmp_path))
    never = _WrittenByRanks(Shared(), folder, answer)  # type: ignore[arg-type]
    monkeypatch.setattr("mugrpo.disk.publishing.time", Shared())
    monkeypatch.setattr(ranks, "time", SimpleNamespace(sleep=lambda _: None))
    with pytest.raises(RunStopped, match=f"nothing has changed in {tmp_path} for 1800 seconds"):
        never.published(wait=True)


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
