"""Chaos: trials that must end in the bits of an uninterrupted run, and the chaos runner itself."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cases import some
from tests.chaos import table
from tests.chaos.compare import differences
from tests.chaos.disk import mountable, small_disk
from tests.chaos.faults import FAULTS
from tests.chaos.kinds import KINDS
from tests.chaos.processes import MARK, abandoned, marked, shared_memory, wait_until_gone
from tests.chaos.trial import Chaos, Outcome, _explained, plan
from tests.faults.harm import flip_bit
from tests.runs import Ended

pytestmark = pytest.mark.long

pytest_plugins = ["tests.run_fixtures"]

# Trials of seed 0 that strike early: a killed reward worker, a killed run, and a full disk.
A_FEW = (90, 20, 25)


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Chaos:
    return Chaos(tmp_path_factory.mktemp("chaos"), pause=2.0)


@pytest.mark.long
@pytest.mark.promise("chaos")
@pytest.mark.parametrize("number", some(1, A_FEW))
def test_a_trial_ends_in_the_bits_of_an_uninterrupted_run_and_leaves_nothing(
    chaos: Chaos, number: int
):
    outcome = chaos.run(0, number)
    assert outcome.good, outcome
    assert outcome.struck or outcome.skipped == ["full disk"]  # without root


@pytest.mark.promise("chaos")
@pytest.mark.long
def test_a_hundred_kills(chaos: Chaos):
    """All kinds of run and all faults. `make chaos` goes on to a thousand."""
    outcomes: list[Outcome] = []
    while sum(len(outcome.struck) for outcome in outcomes) < 100:
        outcomes.append(chaos.run(1, len(outcomes)))
    assert [outcome for outcome in outcomes if not outcome.good] == []


def test_a_seed_and_a_number_decide_a_trial():
    plans = [plan(3, number) for number in range(400)]
    assert plans == [plan(3, number) for number in range(400)]
    assert plan(3, 17) != plan(4, 17)
    assert {one.kind for one in plans} == set(KINDS)
    assert {strike.name for one in plans for strike in one.strikes} == set(FAULTS)


def test_a_bit_a_line_and_a_file_that_differ_are_found(reference: Path, tmp_path: Path):
    run = Path(shutil.copytree(reference, tmp_path / "run"))
    assert differences(run, reference) == []
    shutil.rmtree(run / "checkpoints" / "update-000002")  # a run may keep other ones on the way
    assert differences(run, reference) == []
    flip_bit(run / "stages" / "001" / "scores" / "shard-00000.parquet")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    (run / "checkpoints" / "update-000006" / "model.safetensors.tmp.7").touch()
    (run / "samples" / "update-000006.json").unlink()
    assert [line.partition(":")[0] for line in sorted(differences(run, reference))] == [
        "left over",
        "missing",
        "missing",
        "other",
    ]


def test_a_process_that_stays_is_noticed():
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(words, env={**os.environ, MARK: "a test"})
    try:
        while not marked("a test"):
            time.sleep(0.01)
        gone = wait_until_gone("a test", 0.2)
        assert [left.pid for left in gone.left] == [process.pid] and gone.all == float("inf")
    finally:
        process.kill()
        process.wait()
    assert wait_until_gone("a test", 10).left == [] and marked("another") == []


def test_only_shared_memory_that_nobody_holds_is_left_behind(tmp_path: Path):
    before = shared_memory()
    held, left = (Path(f"/dev/shm/mugrpo-test-{name}-{os.getpid()}") for name in ("held", "left"))
    with open(held, "wb"):
        left.touch()
        try:
            found = abandoned(shared_memory() - before)
        finally:
            held.unlink()
            left.unlink()
    assert left.name in found and held.name not in found


@pytest.mark.parametrize(
    ("ended", "signals", "struck", "explained"),
    [
        (Ended(0, "", ""), set(), [], True),
        (Ended(-9, "", ""), {signal.SIGKILL}, ["kill run"], True),
        (Ended(-11, "", ""), {signal.SIGKILL}, ["kill run"], False),
        (Ended(3, "", "mugrpo: the disk is full"), set(), ["full disk"], True),
        (Ended(3, "", "mugrpo: the disk is full"), set(), [], False),
        (Ended(3, "", "Traceback (most recent call last)"), set(), ["full disk"], False),
        (Ended(2, "", "mugrpo: RUN is locked by pid 1"), set(), ["full disk"], True),
        (Ended(2, "", "mugrpo: 0 bytes are free; make room"), set(), ["full disk"], True),
        (Ended(2, "", "mugrpo: 0 bytes are free; make room"), set(), ["kill run"], False),
        (Ended(2, "", "mugrpo: RUN is not a run"), set(), ["full disk"], False),
        (Ended(1, "", ""), set(), ["full disk"], False),
    ],
)
def test_an_end_must_have_a_reason(
    ended: Ended, signals: set[int], struck: list[str], explained: bool
):
    assert _explained(ended, signals, struck) == explained


@pytest.mark.skipif(not mountable(), reason="mounting a file system needs root")
def test_a_small_disk_fills_up_and_hangs(tmp_path: Path):
    with small_disk(tmp_path / "disk") as disk:
        disk.fill(5000)
        with pytest.raises(OSError, match="No space left"):
            (disk.folder / "file").write_bytes(bytes(100_000))
        disk.empty()
        (disk.folder / "file").write_bytes(bytes(100_000))
        disk.hang(1.0)
        time.sleep(0.5)
        began = time.monotonic()
        (disk.folder / "another").touch()
        assert time.monotonic() - began > 0.1
    assert not any((tmp_path / "disk").iterdir())


OUTCOMES = [
    Outcome(0, 0, "grpo", ["kill run", "clock"]),
    Outcome(0, 1, "grpo", ["kill run"], differences=["other: metrics.jsonl"]),
    Outcome(0, 2, "two ranks", ["kill rank"], leftovers=["process 7"], ranks_gone=[0.25, 3.5]),
]


def test_results_survive_a_cut_and_become_a_table(tmp_path: Path):
    path, page = tmp_path / "chaos.jsonl", tmp_path / "page.md"
    for outcome in OUTCOMES:
        table.append(path, outcome)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert table.read(path) == OUTCOMES[:2]
    table.append(path, OUTCOMES[2])
    assert path.read_bytes() == whole and table.read(path) == OUTCOMES
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write(page, OUTCOMES)
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after") and "old" not in lines
    assert "| grpo | 2 | 2 |  | 1 | 1 | 0 | 0 |  |" in lines
    assert "| two ranks | 1 |  | 1 |  | 0 | 1 | 0 | 3.50 s |" in lines
    assert "4 faults in 3 trials (seed 0): 1 trials with differences, 1 with leftovers" in str(
        lines
    )
    with pytest.raises(ValueError, match="has no lines"):
        table.write(path, OUTCOMES)


def test_ranks_that_stay_for_too_long_count():
    assert OUTCOMES[0].good and not OUTCOMES[1].good
    assert not dataclasses.replace(OUTCOMES[2], leftovers=[]).good
    assert dataclasses.replace(OUTCOMES[2], leftovers=[], ranks_gone=[2.0]).good
