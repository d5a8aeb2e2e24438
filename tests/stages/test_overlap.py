"""Stages that are trained on while they are generated give the weights of a sequential run."""

import os
import signal
import time
from pathlib import Path

import pytest

from mugrpo.config.load import build_config
from mugrpo.disk.errors import UsageError
from tests.cases import table
from tests.runs import (
    SHARDS,
    Started,
    assert_same_but_for_order,
    finished,
    read_metrics,
    start_train,
    state,
    train,
)
from tests.waiting import until

# A stage's three shards are the batches of its three updates.
OVERLAP = ("--overlap", "true", "--engine.processes", "1", "--checkpoint.every", 0)


def held(run_dir: Path, nth: int, *options: object) -> Started:
    """Start a run that waits for `go_on` before it publishes its `nth` shard of rollouts."""
    gate = run_dir.parent / "gate"
    words = (*OVERLAP, *options)
    started = start_train(run_dir, *words, at="entry of rollouts", nth=nth, act=f"hold {gate}")
    until(gate.with_suffix(".held").exists)
    return started


def go_on(run_dir: Path) -> None:
    (run_dir.parent / "gate.go").touch()


def updates(run_dir: Path) -> list[int]:
    return [line["update"] for line in read_metrics(run_dir) if line["kind"] == "update"]


@pytest.mark.promise("overlap")
def test_weights_are_those_of_a_sequential_run_and_updates_do_not_wait(tmp_path, reference):
    """The run is held before its third shard: it makes two updates meanwhile, not three."""
    run_dir = tmp_path / "run"
    started = held(run_dir, SHARDS)
    until(lambda: updates(run_dir) == [1, 2])
    time.sleep(0.3)
    assert updates(run_dir) == [1, 2]
    assert state(run_dir).rollouts == (2, 0)
    go_on(run_dir)
    ended = started.end()
    assert ended.status == 0, ended
    assert_same_but_for_order(run_dir, reference)


@pytest.mark.long
@pytest.mark.parametrize("options", [OVERLAP, ()])
def test_a_run_killed_between_shards_goes_on(tmp_path: Path, reference: Path, options: tuple):
    """It is killed within a stage, and resumed with and without overlap."""
    run_dir = tmp_path / "run"
    started = held(run_dir, SHARDS)
    until(lambda: updates(run_dir) == [1, 2])
    os.kill(started.pid, signal.SIGKILL)
    started.end()
    again = train(run_dir, *options)
    assert again.status == 0, again
    assert_same_but_for_order(run_dir, reference)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        ("--reference.name", "kl", "--reference.coefficient", "0.1"),
        ("--preset", "decoupled-ppo", "--objective.proximal_period", "2"),  # of two batches
    ],
    ids=["reference", "proximal"],
)
def test_logprobs_of_other_policies_are_made_as_shards_arrive(tmp_path: Path, options: tuple):
    finished(tmp_path / "plain", *options)
    finished(tmp_path / "run", *options, *OVERLAP)
    assert_same_but_for_order(tmp_path / "run", tmp_path / "plain")


@pytest.mark.long
def test_two_ranks_wait_for_shards_too(tmp_path: Path):
    """They read what the run publishes meanwhile. Evaluations come between two starts of ranks."""
    two = ("--distributed.processes", "2")
    finished(tmp_path / "plain", *two, "--engine.processes", "1")
    finished(tmp_path / "run", *two, *OVERLAP)
    assert_same_but_for_order(tmp_path / "run", tmp_path / "plain")


TWO = {"engine": {"name": "vllm"}, "distributed": {"processes": 2}, "reference": {"name": "kl"}}


@table(
    ("raw", "words"),
    [
        ({}, "engine outside this process"),
        ({"engine": {"processes": 1}, "checkpoint": {"every": 2}}, "checkpoint.every = 0"),
        (TWO, "distributed.processes = 1"),
    ],
)
def test_overlap_without_what_it_needs_is_refused(raw: dict, words: str):
    with pytest.raises(UsageError, match="overlap = true needs") as refused:
        build_config({"overlap": True, **raw}, "test.toml")
    assert words in str(refused.value)
