"""Only the first rank looks into the folder, but orders and stops reach all ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mugrpo.disk.run_dir import RunDir
from mugrpo.stages.orders import Order, answer_to, give
from tests.runs import ENVIRONMENT
from tests.waiting import alive, soon, until

# Each rank notes its orders, and which files of the folder it asks for.
RANK = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from mugrpo.disk.errors import Interrupted
from mugrpo.disk.run_dir import RunDir
from mugrpo.processes.ranks import Ranks, joined
from mugrpo.processes.lifetime import stop_on_signals
from mugrpo.run.opened import OpenRun
from mugrpo.stages.orders import orders

root, notes = map(Path, sys.argv[1:])
asked = set()
stat = os.stat
def noted(path, *args, **named):
    if str(path).startswith(str(root)):
        asked.add(Path(path).name)
    return stat(path, *args, **named)
os.stat = noted
def audited(event, args):
    if event == "open" and str(args[0]).startswith(str(root)):
        asked.add(Path(args[0]).name)
sys.addaudithook(audited)

class Run(SimpleNamespace):
    check = OpenRun.check

with stop_on_signals(patient=True) as stop, joined("optimize") as joining:
    ranks = Ranks(joining.rank, joining.size, driven=True)
    folder = RunDir(root)
    run = Run(folder=folder, ranks=ranks, stop=stop)
    note = notes / str(ranks.rank)
    note.write_text(f"{os.getpid()}\\n")
    try:
        for order in orders(run):
            with note.open("a") as file:
                file.write(f"{order.task} {order.update}\\n")
        last = "ended"
    except Interrupted:
        last = "stopped"
    if not ranks.first:
        assert asked <= {"stop"}, asked
    with note.open("a") as file:
        file.write(f"{last}\\n")
"""


@contextmanager
def three_ranks(tmp_path: Path) -> Iterator[tuple[RunDir, list[Path], subprocess.Popen[bytes]]]:
    """Start three ranks, and yield their folder, their notes and their launcher."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    folder = RunDir(tmp_path / "run")
    folder.ranks.mkdir(parents=True)
    (notes := tmp_path / "notes").mkdir()
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    words += [str(script), str(folder.root), str(notes)]
    launcher = subprocess.Popen(words, env={**os.environ, **ENVIRONMENT})
    try:
        until(lambda: len(list(notes.iterdir())) == 3, 120)
        yield folder, sorted(notes.iterdir()), launcher
    finally:
        launcher.kill()
        launcher.wait()


def said(notes: list[Path]) -> list[list[str]]:
    return [note.read_text().splitlines()[1:] for note in notes]


@pytest.mark.long
def test_all_ranks_get_the_orders_that_the_first_one_reads(tmp_path: Path):
    with three_ranks(tmp_path) as (folder, notes, launcher):
        for number, order in enumerate([Order(1, "optimize", 4), Order(2, "logprobs", 4)], 1):
            time.sleep(1.5)  # longer than a pulse of the first rank
            give(folder, order)
            until(lambda order=order: answer_to(folder, order))
            assert said(notes) == [["optimize 4", "logprobs 4"][:number]] * 3
        give(folder, Order(3, "end"))
        assert launcher.wait(60) == 0
        assert said(notes) == [["optimize 4", "logprobs 4", "ended"]] * 3


@pytest.mark.long
def test_a_signal_to_any_rank_that_waits_for_an_order_stops_all_within_seconds(tmp_path: Path):
    with three_ranks(tmp_path) as (folder, notes, launcher):
        give(folder, Order(1, "optimize", 4))
        until(lambda: answer_to(folder, Order(1, "optimize")))
        began = time.monotonic()
        os.kill(int(notes[2].read_text().split()[0]), signal.SIGTERM)
        assert launcher.wait(60) == 0
        assert time.monotonic() - began < 10
        assert said(notes) == [["optimize 4", "stopped"]] * 3


@pytest.mark.long
def test_a_rank_that_waits_for_an_order_ends_when_another_one_is_lost(tmp_path: Path):
    """It notices at the next pulse of the first rank, without the launcher, which is stopped."""
    with three_ranks(tmp_path) as (_, notes, launcher):
        ranks = [int(note.read_text().split()[0]) for note in notes]
        time.sleep(1.5)
        launcher.send_signal(signal.SIGSTOP)
        for victim in (2, 0):  # the first rank's loss ends the one that is left
            os.kill(ranks[victim], signal.SIGKILL)
        assert soon(lambda: not alive(ranks[1]), 20)
