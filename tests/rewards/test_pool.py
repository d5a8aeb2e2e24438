"""Workers hang, die and explode; the pool goes on and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mugrpo.config.base import WorkerOptions
from mugrpo.config.rewards import ExactOptions, FunctionOptions
from mugrpo.disk.errors import RunStopped
from mugrpo.extensions.code import CodeOptions
from mugrpo.processes.messages import to_json
from mugrpo.processes.workers import Limits
from mugrpo.rewards import grading
from mugrpo.rewards.grading import Pool
from tests.waiting import alive, soon

HERE = Path(__file__).parent
OBEYS = FunctionOptions(function=f"{HERE / 'misbehaving.py'}:obeys")


MADE: list[Pool] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()


def pool(
    count: int = 1, timeout: float = 5.0, patience: float = 60.0, memory_mb: int = 512
) -> Pool:
    """Return a pool whose two deadlines are apart by another factor than 12. It is closed later."""
    made = Pool([OBEYS], WorkerOptions(count=count, timeout=timeout, memory_mb=memory_mb))
    made._limits = Limits(patience, timeout, memory_mb)
    MADE.append(made)
    return made


def item(text: str) -> str:
    about = {"answer": "", "id": "p", "prompt": "", "columns": {}, "ids": [], "state": None}
    return to_json({"text": text, **about})


def outcomes(workers: Pool, *texts: str) -> list[object]:
    """Return the reward of each text, or the reason why there is none."""
    return [value_of(outcome) for [outcome] in workers.run([item(text)] for text in texts)]


def value_of(outcome: dict) -> object:
    return outcome["failure"] if "failure" in outcome else outcome["values"]["obeys"]


def processes(workers: Pool) -> list[int]:
    """Return the ids of the workers."""
    return [worker.process.pid for worker in workers._workers]


def test_answers_come_in_order_and_a_hang_is_killed_at_its_deadline():
    workers = pool(count=2, timeout=0.5, patience=5.0)
    results = outcomes(workers, "loop", "1", "2", "sleep 300 0", "3")
    computing = "not finished after 0.5 seconds of computing"
    assert results == [computing, 1, 2, "not finished within 5 seconds", 3]
    workers = pool(count=2)
    assert outcomes(workers, "sleep 0.5 1", "2", "sleep 0.1 3", "4", "5") == [1, 2, 3, 4, 5]


def test_only_computing_counts_as_time_so_a_busy_machine_changes_no_score():
    """While another process has its core, a worker's clock stands still."""
    workers = pool(timeout=0.5)
    workers.start()
    [busy] = processes(workers)
    reading = workers.run([[item("compute 0.3 4")]])
    with ThreadPoolExecutor(1) as threads:
        judged = threads.submit(list, reading)
        for _ in range(8):
            os.kill(busy, signal.SIGSTOP)
            time.sleep(0.2)
            os.kill(busy, signal.SIGCONT)
            time.sleep(0.02)
        assert value_of(judged.result()[0][0]) == 4
    assert outcomes(workers, "sleep 1.5 5") == [5]
    assert outcomes(workers, "compute 0.7 6") == ["not finished after 0.5 seconds of computing"]


def test_rewards_that_do_not_wait_have_no_deadline_but_of_computing():
    options = (ExactOptions(), OBEYS, CodeOptions())
    pools = [Pool([one], WorkerOptions(timeout=2.0)) for one in options]
    assert [made._limits.seconds for made in pools] == [0, 24.0, 24.0]


def test_after_a_memory_error_a_fresh_process_judges():
    workers = pool()
    assert len(set(outcomes(workers, "where", "raise x", "where"))) == 2
    assert len(set(outcomes(workers, "where", "bomb", "where"))) == 3


def test_if_a_batch_fails_only_the_culprit_gets_no_reward():
    workers = pool(timeout=0.8)
    calls = [[item(text) for text in ("1", "loop", "3")], [item("raise boom"), item("5")]]
    results = [[value_of(outcome) for outcome in call] for call in workers.run(calls)]
    late = "not finished after 0.8 seconds of computing"  # alone; the three had 2.4
    assert results == [[1, late, 3], ["obeys: ValueError: boom", 5]]


def test_those_that_do_not_fail_alone_are_compared_without_those_that_do(tmp_path):
    """The function's reward is the size of its call. Alone, all but the ones that raise have 1."""
    file = tmp_path / "size.py"
    file.write_text(
        "def obeys(completions, **_):\n"
        "    if 'bad' in completions or completions == ['a', 'b']: raise ValueError('boom')\n"
        "    return [len(completions)] * len(completions)\n"
    )
    sizes = FunctionOptions(function=f"{file}:obeys")
    workers = Pool([sizes], WorkerOptions(count=2), together=True)
    MADE.append(workers)
    texts = (["x", "bad", "y", "z"], ["a", "b"], ["x", "y"], ["bad", "x"])
    calls = [[item(text) for text in call] for call in texts]
    results = [[value_of(outcome) for outcome in call] for call in workers.run(calls)]
    boom = "obeys: ValueError: boom"
    assert results == [[3, boom, 3, 3], [boom, boom], [2, 2], [boom, 1]]


def test_workers_stay_warm_and_close_ends_them():
    workers = pool(count=2)
    [first] = outcomes(workers, "where")
    known = processes(workers)
    assert int(first) in processes(workers) and outcomes(workers, "1", "2", "3") == [1, 2, 3]
    assert processes(workers) == known and all(map(alive, known))
    workers.close()
    assert not any(map(alive, known))
    workers.close()
    assert outcomes(workers, "4") == [4]


def test_a_reader_that_stops_early_leaves_no_call_behind():
    workers = pool(count=2)
    reading = workers.run([item(text)] for text in ["1", "loop", "2"])
    assert value_of(next(reading)[0]) == 1
    busy = [w.process.pid for w in workers._workers if w.sent]
    reading.close()
    assert busy and not any(map(alive, busy))
    assert outcomes(workers, "3") == [3]


def taken_for(workers: Pool, texts: list[str], answers: int) -> int:
    """Return how many of `texts` were taken by the time that `answers` of them were judged."""
    taken = []
    reading = workers.run([item(taken.append(text) or text)] for text in texts)
    for _ in range(answers):
        next(reading)
    reading.close()
    return len(taken)


def test_answers_are_taken_as_workers_become_free_and_a_slow_one_holds_few_back(monkeypatch):
    assert 10 <= taken_for(pool(), ["1"] * 100, 10) <= 11  # one is with the worker
    monkeypatch.setattr(grading, "LOOK_AHEAD", 5)
    assert taken_for(pool(count=2), ["sleep 1.5 1", *["1"] * 100], 1) <= 5 + 1


def test_a_worker_killed_between_calls_is_replaced_and_while_it_loads_stops_the_run():
    workers = pool()
    outcomes(workers, "1")
    [worker] = processes(workers)
    os.kill(worker, signal.SIGKILL)
    assert soon(lambda: not alive(worker))
    assert outcomes(workers, "2", "3") == [2, 3]
    workers = pool()
    workers._start_missing()
    os.kill(processes(workers)[0], signal.SIGKILL)
    with pytest.raises(RunStopped, match=r"died while it was loading \(SIGKILL\)"):
        workers.start()


@pytest.mark.promise("dead judge")
def test_an_answer_whose_worker_something_else_kills_is_judged_by_the_next_one(tmp_path):
    """Alone, and in a call with others. An answer that kills two workers has failed."""
    workers = pool()
    assert outcomes(workers, "1", f"killed {tmp_path / 'once'}", "3") == [1, 1, 3]
    texts = ("1", f"killed {tmp_path / 'again'}", "exit 3")
    [call] = workers.run([[item(text) for text in texts]])
    assert [value_of(outcome) for outcome in call] == [1, 1, "the worker died (status 3)"]


def test_what_a_reward_started_dies_with_it(tmp_path):
    workers = pool(timeout=2.0)
    file = tmp_path / "numbers"
    assert outcomes(workers, f"child {file}") == ["not finished after 2 seconds of computing"]
    assert soon(lambda: not any(alive(int(number)) for number in file.read_text().split()))


def script(text: str, *arguments: object) -> subprocess.Popen[str]:
    """Run `text` in a new process with the names of this module and a pool `workers` of two."""
    head = f"""
    import os, sys
    sys.path.insert(0, {str(HERE.parents[1])!r})
    from tests.rewards.test_pool import *
    workers = pool(count=2, timeout=60)
    """
    code = textwrap.dedent(head) + textwrap.dedent(text)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_workers_in_a_hot_loop_die_with_a_killed_run(tmp_path):
    """So does what one of them started, although no code of the worker itself can run."""
    file = tmp_path / "numbers"
    run = script(
        """
    workers.start()
    print(*processes(workers), flush=True)
    outcomes(workers, "loop", f"child {sys.argv[1]}")
    """,
        file,
    )
    assert run.stdout is not None
    known = [int(number) for number in run.stdout.readline().split()]
    assert soon(lambda: file.exists() and len(file.read_text().split()) == 2)
    known += [int(number) for number in file.read_text().split()]
    time.sleep(1.0)  # until both are in the loop
    assert len(set(known)) == 3 and all(map(alive, known))
    run.kill()
    run.communicate()
    assert soon(lambda: not any(map(alive, known)))
