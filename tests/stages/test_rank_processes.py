"""Runs with two ranks: a dead rank, signals, another number of ranks, and waiting for a folder."""

import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
import torch

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import publish_json, writer
from mugrpo.disk.run_dir import Handover, RunDir
from mugrpo.hosts import orders
from mugrpo.hosts.jobs import LocalJob
from mugrpo.hosts.orders import RankAnswer
from mugrpo.hosts.ranks import RankHost, _WrittenByRanks
from mugrpo.hosts.weights import hand_over
from mugrpo.optimize.checkpoint import Writing
from mugrpo.processes.ranks import show_log
from tests.builders import saved_weights
from tests.faults.harm import resume_words, stopped
from tests.runs import (
    Started,
    checkpoints,
    differences,
    final_weights,
    finished,
    mugrpo,
    read_metrics,
    shards,
    start,
    start_train,
    train,
    write_config,
)
from tests.stages.builders import run_of
from tests.waiting import alive, ranks_of, soon, until

# One stage, a checkpoint after every second update: the ranks are started once in a run.
LONG = ("--schedule.stages", "1", "--schedule.batches_per_stage", "24", "--evaluation.every", "0")
TWO = (*LONG, "--distributed.processes", "2")
LAST = 24


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of two ranks. Tests only read it."""
    run_dir = tmp_path_factory.mktemp("together") / "run"
    finished(run_dir, *TWO)
    return run_dir


def wait_for(started: Started, run_dir: Path, update: int) -> list[int]:
    """Wait for the metrics line of `update` or a later one, and return the ranks' process ids."""

    def both() -> list[int]:
        lines = read_metrics(run_dir)
        there = any(line["kind"] == "update" and line["update"] >= update for line in lines)
        return ranks if there and len(ranks := ranks_of(started.pid)) == 2 else []

    return until(both, 180)


def assert_close(run_dir: Path, other: Path, update: int = 2) -> None:
    """Compare weights after a few updates. AdamW enlarges the rounding of small gradients."""
    name = f"checkpoints/update-{update:06d}"
    ours, theirs = saved_weights(run_dir / name), saved_weights(other / name)
    for key, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[key], rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.long
def test_two_ranks_give_the_run_of_one(together: Path, tmp_path: Path):
    """Shards agree to the bit, the weights after two updates up to rounding."""
    alone = tmp_path / "run"
    finished(alone, *LONG)
    ours, theirs = shards(together), shards(alone)
    assert ours == theirs
    assert_close(together, alone)
    kinds = [(line["kind"], line["update"]) for line in read_metrics(together)]
    assert kinds == [(line["kind"], line["update"]) for line in read_metrics(alone)]


@pytest.mark.parametrize(
    ("gpus", "options", "waits"),
    [
        (True, {}, True),
        (True, {"overlap": True}, False),  # engines have GPUs of their own
        (False, {}, False),
    ],
)
def test_engines_start_on_gpus_of_ranks_that_have_loaded_and_sleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: bool, options: dict, waits: bool
):
    engine = {"name": "vllm"}
    config = build_config({"engine": engine, "distributed": {"processes": 2}, **options}, "test")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    done = list[Any]()
    monkeypatch.setattr(RankHost, "_start", lambda _: done.append("start"))
    monkeypatch.setattr(RankHost, "_obeyed", lambda _, order: done.append(order.task))
    RankHost(run_of(tmp_path, config)).load()
    assert done == ["start", *["load"] * waits]


# Memory runs out on the second rank, once, in its fourth micro-batch.
HUNGRY = """
import os, torch
calls = []

def loss(logprobs, behavior_logprobs, advantages, mask):
    calls.append(1)
    if os.environ.get("RANK") == "1" and len(calls) == 4 and not os.path.exists(MARK):
        open(MARK, "w").close()
        raise torch.OutOfMemoryError("CUDA out of memory")
    return -(logprobs - behavior_logprobs).exp() * advantages[:, None], {}
"""


@pytest.mark.long
@pytest.mark.promise("memory")
def test_memory_that_runs_out_on_one_rank_stops_the_run_with_the_option_that_goes_on(tmp_path):
    file = tmp_path / "hungry.py"
    file.write_text(HUNGRY.replace("MARK", repr(str(tmp_path / "mark"))))
    run_dir = tmp_path / "run"
    own = ("--objective.name", "file", "--objective.path", file)
    ended = train(run_dir, *TWO, "--schedule.batches_per_stage", 6, *own)
    assert ended.status != 0, ended
    named = re.search(r"--optimizer.micro_batch_tokens (\d+) --force", ended.err)
    assert named and int(named[1]) < 4096, ended
    lower = ("--optimizer.micro_batch_tokens", named[1], "--force")
    assert mugrpo(*resume_words(ended), *lower).status == 0
    lines = [line for line in read_metrics(run_dir) if line["kind"] == "update"]
    assert [line["update"] for line in lines] == [1, 2, 3, 4, 5, 6]


@pytest.mark.promise("ranks")
@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "name", "sentence"),
    [
        (0, "SIGKILL", "rank 0 of 2 ended with SIGKILL"),
        (1, "SIGKILL", "rank 1 of 2 ended with SIGKILL"),
        (None, "SIGTERM", "stopped by SIGTERM"),
        (None, "SIGKILL", ""),
    ],
    ids=["first rank killed", "second rank killed", "run stopped", "run killed"],
)
def test_a_run_that_ends_early_leaves_no_rank_and_is_resumed_to_the_same_bits(
    together: Path, tmp_path: Path, victim: int | None, name: str, sentence: str
):
    """A rank or the run itself (None) gets a signal. SIGTERM saves every update."""
    run_dir = tmp_path / "run"
    started = start_train(run_dir, *TWO)
    ranks = wait_for(started, run_dir, 3)
    os.kill(started.pid if victim is None else ranks[victim], signal.Signals[name])
    ended = started.end(300)
    if sentence:
        stopped(ended, sentence)
    if victim is not None:
        assert "its log is" in ended.err and f"rank-{victim}.err" in ended.err
    if name == "SIGTERM":
        made = max(line["update"] for line in read_metrics(run_dir) if line["kind"] == "update")
        assert max(checkpoints(run_dir)) == made >= 3
    assert soon(lambda: not any(map(alive, ranks)), 10)
    words = resume_words(ended) if sentence else ("train", run_dir)
    again = mugrpo(*words)
    assert (again.status, again.err) == (0, ""), again
    assert not differences(run_dir, together, LAST)


STAGES = (
    *("--schedule.stages", "3", "--schedule.batches_per_stage", "4", "--evaluation.every", "6"),
    *("--distributed.processes", "2", "--engine.processes", "1"),
)
SEVERAL = (*STAGES, "--checkpoint.every", "1", "--reference.name", "kl")


@pytest.mark.promise("no orphans")
@pytest.mark.long
def test_ranks_that_are_stopped_or_still_importing_end_with_the_run(tmp_path: Path):
    """The kernel ends them within two seconds: they could not do it themselves."""
    for moment in ("importing", "stopped"):
        started = start_train(tmp_path / moment, *TWO)
        ranks = until(lambda started=started: len(found := ranks_of(started.pid)) == 2 and found)
        if moment == "stopped":
            for rank in ranks:
                tasks = Path(f"/proc/{rank}/task")  # a second thread means that it has asked for it
                until(lambda tasks=tasks: len(list(tasks.iterdir())) > 1)
                os.kill(rank, signal.SIGSTOP)
        os.kill(started.pid, signal.SIGKILL)
        assert soon(lambda ranks=ranks: not any(map(alive, ranks)), 2)
        started.end()


# The last update alone is saved, and an evaluation comes within the second stage.
UNSAVED = (*STAGES, "--checkpoint.every", "100")


@pytest.mark.promise("checkpoints")
@pytest.mark.long
def test_engines_get_the_model_of_updates_that_only_the_ranks_hold(tmp_path: Path):
    """Without a checkpoint at their end, the stages are those of a run that saves every update. A
    run that is killed makes the updates again. One that is asked to stop saves them."""
    saved, run_dir = tmp_path / "saved", tmp_path / "run"
    finished(saved, *UNSAVED, "--checkpoint.every", "1")
    started = start_train(run_dir, *UNSAVED)
    wait_for(started, run_dir, 9)
    os.kill(started.pid, signal.SIGKILL)
    started.end()
    assert checkpoints(run_dir) == []
    assert {4, 6, 8} & {int(p.name[7:]) for p in (run_dir / "ranks" / "models").glob("*")}
    started = start_train(run_dir, *UNSAVED)
    wait_for(started, run_dir, 5)
    os.kill(started.pid, signal.SIGTERM)
    assert started.end(300).status == 3
    assert len(checkpoints(run_dir)) == 1
    finished(run_dir, *UNSAVED)
    assert not differences(run_dir, saved, 12)
    assert checkpoints(run_dir) == [12]  # that of the stop is not asked for by an option


def job_of(running: bool) -> Any:
    """Return ranks that go on working, or that have ended at once, with status 0."""
    returned = {"running.return_value": running, "fault.return_value": None}
    return Mock(LocalJob, **returned)


def test_a_run_whose_ranks_end_without_saving_their_updates_says_so(tmp_path: Path):
    RunDir(tmp_path).ranks.mkdir()
    RunDir(tmp_path).checkpoint(5).mkdir(parents=True)
    run = run_of(tmp_path)
    folder, ranks = run.folder, RankHost(run)
    for unsaved, error in ((8, pytest.raises(RunStopped)), (5, nullcontext())):
        folder.handover, ranks._job = Handover(unsaved, tmp_path), job_of(running=False)
        with error:
            ranks.close()
        assert folder.handover is None and not ranks.running()


def test_a_checkpoint_that_later_ones_have_replaced_counts_as_published(tmp_path: Path):
    """The run looked away while the ranks published 75, then 78 and 80, and kept two."""
    folder = RunDir(tmp_path)
    waited_for = _WrittenByRanks(job_of(running=True), folder, RankAnswer(1, update=75))  # type: ignore[arg-type]
    assert not waited_for.published(wait=False)
    for update in (78, 80):
        folder.checkpoint(update).mkdir(parents=True)
    assert waited_for.published(wait=True)


@pytest.mark.promise("ranks")
@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1, None], ids=["first rank", "second rank", "run"])
@pytest.mark.parametrize("moment", ["generation", "hand-over"])
def test_a_kill_between_orders_changes_nothing(tmp_path: Path, victim: int | None, moment: str):
    """The ranks wait for the next stage, or have just begun to write the last one's checkpoint."""
    run_dir, whole = tmp_path / "run", tmp_path / "whole"
    finished(whole, *SEVERAL)
    started = start_train(run_dir, *SEVERAL)
    ranks = wait_for(started, run_dir, 4)
    if moment == "generation":
        until(lambda: 4 in checkpoints(run_dir))
    os.kill(started.pid if victim is None else ranks[victim], signal.SIGKILL)
    ended = started.end(300)
    assert ended.status == (-signal.SIGKILL if victim is None else 3), ended
    assert soon(lambda: not any(map(alive, ranks)), 10)
    finished(run_dir, *SEVERAL)
    assert not differences(run_dir, whole, 12)


@pytest.mark.promise("other ranks")
@pytest.mark.long
def test_another_number_of_ranks_can_resume_a_run(together: Path, tmp_path: Path):
    """Two ranks begin the run. One resumes it and says so."""
    run_dir = tmp_path / "run"
    started = start_train(run_dir, *TWO)
    wait_for(started, run_dir, 3)
    os.kill(started.pid, signal.SIGKILL)
    started.end()
    ended = train(run_dir, *LONG)
    assert ended.status == 0, ended
    assert "changed since the run began: distributed.processes: 2 -> 1" in ended.out
    assert_close(run_dir, together)
    assert max(checkpoints(run_dir)) == LAST


def test_more_processes_than_gpus_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command
):
    """The count of GPUs is a stand-in."""
    monkeypatch.setattr("mugrpo.engines.process.visible_gpus", lambda: ["0", "1"])
    config = write_config(tmp_path / "config")
    ended = command("train", config, "--run-dir", tmp_path / "run", "--distributed.processes", "4")
    assert ended.status == 2 and "; set --distributed.processes 2, or name more" in ended.err
    assert not (tmp_path / "run" / "ranks").exists()


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
    host._job = job_of(running=True)  # type: ignore[assignment]
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
    writing = Writing(snapshot, path, {}, first=writer(), then=lambda: None)
    del snapshot
    assert writing.published(wait=True)
    assert freed.is_set()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def launched(rank: int, port: int) -> None:
    """Set what torchrun sets for one of two ranks."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.long
@pytest.mark.promise("launcher")
def test_ranks_that_a_launcher_starts_give_the_bits_of_those_that_a_run_starts(
    tmp_path: Path, together: Path, generated: Path
):
    """Both get SIGTERM in the middle, as from a scheduler, and go on from a checkpoint."""
    run_dir = Path(shutil.copytree(generated, tmp_path / "run"))
    for turn, port in enumerate((free_port(), free_port())):
        both = [
            start("optimize", run_dir, "--stage", 0, first=partial(launched, rank, port))
            for rank in range(2)
        ]
        if turn == 0:
            until(lambda: len([x for x in read_metrics(run_dir) if x["kind"] == "update"]) >= 5)
            for one in both:
                os.kill(one.pid, signal.SIGTERM)
        assert [one.end().status for one in both] == ([3, 3] if turn == 0 else [0, 0])
    options = json.loads((run_dir / "config.json").read_text())["config"]
    assert options["distributed"]["processes"] == 1  # the launcher's number is not the run's
    port = free_port()  # all is done: both end all the same
    both = [
        start("optimize", run_dir, "--stage", 0, first=partial(launched, rank, port))
        for rank in range(2)
    ]
    assert [one.end().status for one in both] == [0, 0]
    assert final_weights(run_dir, LAST) == final_weights(together, LAST)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose one stage is generated and scored. Tests copy it."""
    run_dir = tmp_path_factory.mktemp("generated") / "run"
    config = write_config(run_dir.parent / "config")
    for phase in ("generate", "score"):
        assert mugrpo(phase, config, "--run-dir", run_dir, *LONG).status == 0
    return run_dir
