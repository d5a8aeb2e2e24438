"""Engines in processes of their own: the same tokens, and what happens if a process dies."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch

from mugrpo.config.engines import ContinuousOptions
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.errors import Interrupted, RunStopped, UsageError
from mugrpo.engines import make_engines, process
from mugrpo.engines.base import Completion, Request
from mugrpo.engines.continuous import ContinuousEngine
from mugrpo.engines.process import RemoteEngine
from mugrpo.model.policy import Policy, load_policy
from mugrpo.model.pretrained import EMBEDDED
from mugrpo.processes.peer import Peer
from tests.builders import PROMPTS, collected, encoded
from tests.waiting import alive, soon

COUNT, LIMIT = 24, 24  # one slot: a second or two of work, so some is left at a kill
CHAIN = str(EMBEDDED["chain"])


class Remote:
    """A remote engine over the embedded model, and what it said."""

    def __init__(self, policy: Policy, folder: Path) -> None:
        self.said: list[str] = []
        chosen = ContinuousOptions(slots=1, processes=1)
        self.log = folder / "engine-0.log"
        (engine,) = make_engines(
            RunConfig(engine=chosen),
            vocabulary=policy.vocabulary,
            policy=None,
            log=lambda name: folder / f"{name}.log",
            notify=self.said.append,
            check=lambda: None,
        )
        assert isinstance(engine, RemoteEngine)
        self.engine = engine

    @property
    def peer(self) -> Peer:
        assert isinstance(self.engine._process, Peer)
        return self.engine._process

    @property
    def pid(self) -> int:
        return self.peer.process.pid


@pytest.fixture(scope="module")
def requests(embedded_policy: Policy) -> list[Request]:
    """Requests in groups of five with the same prompt."""
    prompts = [encoded(embedded_policy, PROMPTS[i // 5 % len(PROMPTS)]) for i in range(COUNT)]
    return [Request(prompt, 1000 + i) for i, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def expected(embedded_policy: Policy, requests: list[Request]) -> list[Completion]:
    return taken(ContinuousEngine(embedded_policy, ContinuousOptions(slots=1)), requests)


@pytest.fixture(scope="module")
def kept(embedded_policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """One process for the tests that leave it alive."""
    remote = Remote(embedded_policy, tmp_path_factory.mktemp("shared"))
    yield remote
    remote.engine.close()


@pytest.fixture
def shared(kept: Remote) -> Remote:
    """That process with the weights of update 0, whatever an earlier test has left."""
    kept.engine.refresh(0, lambda: CHAIN)
    kept.said.clear()
    return kept


def taken(engine, requests, *, after=lambda done: None) -> list[Completion]:
    """Return a completion for each of `requests`. `after` is called with how many are done."""
    steps = engine.generate(requests, temperature=1.0, max_new_tokens=LIMIT, top_p=1.0)
    return collected(steps, after)


def assert_same(actual: list[Completion], expected: list[Completion]) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)
        assert ours.finish_reason is theirs.finish_reason


def test_another_process_samples_the_same_bits(shared: Remote, requests, expected):
    assert_same(taken(shared.engine, requests), expected)
    assert_same(taken(shared.engine, requests), expected)  # the same process again
    assert shared.said == []


@pytest.mark.long
def test_it_samples_from_the_weights_of_the_refresh(
    shared: Remote, embedded_policy: Policy, requests, expected, tmp_path: Path
):
    embedded_policy.save(tmp_path / "same")
    shared.engine.refresh(1, lambda: str(tmp_path / "same"))
    assert_same(taken(shared.engine, requests), expected)
    pid = shared.pid
    shared.engine.refresh(1, lambda: pytest.fail("nothing changed"))
    trained = load_policy(ModelOptions())
    with torch.no_grad():
        trained.model.model.norm.weight.mul_(0.5)
    trained.save(tmp_path / "trained")
    shared.engine.refresh(2, lambda: str(tmp_path / "trained"))
    in_process = ContinuousEngine(trained, ContinuousOptions(slots=1))
    completions = taken(in_process, requests)
    assert_same(taken(shared.engine, requests), completions)
    assert any(len(a.ids) != len(b.ids) for a, b in zip(completions, expected, strict=True))
    shared.engine.refresh(0, lambda: CHAIN)
    assert_same(taken(shared.engine, requests), expected)
    assert shared.pid == pid and shared.said == []


@pytest.mark.long
def test_a_process_that_is_lost_is_restarted_and_makes_the_same_responses_but_not_too_often(
    embedded_policy: Policy, requests, expected, tmp_path: Path
):
    """The first process is killed and the second one hangs. The third loss is one too many."""
    lost = Remote(embedded_policy, tmp_path)
    lost.engine.refresh(0, lambda: CHAIN)
    first = lost.pid
    hung: list[int] = []

    def lose(done: int) -> None:
        if done >= 5 and lost.pid == first:
            os.kill(first, signal.SIGKILL)
            time.sleep(0.2)
        elif done > 5 and not hung:
            lost.peer.silence = 1.0  # of this process only: the next may be slow to load
            hung.append(lost.pid)
            os.kill(lost.pid, signal.SIGSTOP)

    assert_same(taken(lost.engine, requests, after=lose), expected)
    killed, silent = lost.said
    assert killed == f"the engine ended with SIGKILL; its log is {lost.log}. Restarting it (1/2)"
    assert silent == (
        f"the engine has sent nothing for 1 s; its log is {lost.log}. Restarting it (2/2)"
    )
    assert not any(Path(f"/proc/{pid}").exists() for pid in (first, *hung))

    def kill(done: int) -> None:
        if done:
            os.kill(lost.pid, signal.SIGKILL)
            time.sleep(0.2)

    with pytest.raises(RunStopped, match=r"ended with SIGKILL.*started 3 times"):
        taken(lost.engine, requests, after=kill)
    assert len(lost.said) == 2


@pytest.mark.long
@pytest.mark.parametrize("when", [1, COUNT])  # after the last one, "end" is still to come
def test_an_interrupted_generation_ends_the_process(shared: Remote, requests, expected, when):
    def interrupt(done: int) -> None:
        if done >= when:
            raise Interrupted("")

    pid = shared.pid
    with pytest.raises(Interrupted):
        taken(shared.engine, requests, after=interrupt)
    assert not Path(f"/proc/{pid}").exists()
    assert_same(taken(shared.engine, requests), expected)  # in a new one


def die_in_generation(
    policy: Policy, folder: Path, requests: list[Request], pid: Connection
) -> None:
    remote = Remote(policy, folder)
    remote.engine.refresh(0, lambda: CHAIN)
    pid.send(remote.pid)
    taken(remote.engine, requests, after=lambda done: done and os.kill(os.getpid(), 9))


@pytest.mark.long
@pytest.mark.promise("no orphans")
def test_a_process_that_generates_ends_with_a_killed_run(embedded_policy, requests, tmp_path):
    context = multiprocessing.get_context("fork")  # saves it the imports
    ours, theirs = context.Pipe()
    run = context.Process(
        target=die_in_generation, args=(embedded_policy, tmp_path, requests, theirs)
    )
    run.start()
    run.join(120)
    assert run.exitcode == -signal.SIGKILL
    pid = ours.recv()
    assert soon(lambda: not alive(pid))


HEAD = f"""
import sys
sys.path.insert(0, {str(Path(process.__file__).parents[1])!r})
from processes.child import Channel
import numpy as np
channel = Channel()
channel.receive()
"""
LIAR = """
while True:
    message = channel.receive()
    if "load" in message:
        channel.send({"loaded": True})
        continue
    asked = message["generate"]["requests"]
    channel.send(ANSWER)
    channel.send({"end": True})
"""


WRONG_ID = """{"slots": 2, "completions": [
    {"index": index, "reason": "stop", "ids": np.array([2, 99], np.int32).tobytes(),
     "logprobs": np.array([-0.5, -0.5], np.float32).tobytes()} for index, *_ in asked]}"""


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        (WRONG_ID, RunStopped, "impossible completion"),
        ('{"failed": "memory", "text": "out of memory"}', MemoryError, "out of memory"),
        ('{"failed": "refused", "text": "no such option"}', UsageError, "no such option"),
    ],
)
def test_an_answer_that_cannot_be_right_stops_the_run(
    embedded_policy: Policy, requests, tmp_path: Path, monkeypatch, said, error, text
):
    """The process answers every task with `said`, a Python expression."""
    (tmp_path / "worker.py").write_text(HEAD + LIAR.replace("ANSWER", said))
    monkeypatch.setattr(process, "_WORKER", tmp_path / "worker.py")
    monkeypatch.setattr(process, "RESTARTS", 0)
    lying = Remote(embedded_policy, tmp_path)
    with pytest.raises(error, match=text):
        taken(lying.engine, requests[:3])
    lying.engine.close()


SLEEPER = """
asleep, naps, loads = False, 0, 0
while True:
    message = channel.receive()
    if "load" in message:
        asleep, loads = False, loads + 1
        channel.send({"loaded": True})
    elif "sleep" in message:
        asleep, naps = SLEEPS, naps + 1
        channel.send({"asleep": asleep})
    else:
        assert not asleep
        ids, logprobs = np.array([naps, loads], np.int32), np.zeros(2, np.float32)
        entry = {"ids": ids.tobytes(), "logprobs": logprobs.tobytes(), "reason": "stop"}
        channel.send({"completions": [{"index": 0, **entry}], "slots": 2})
        channel.send({"end": True})
"""


@pytest.mark.parametrize(("sleeps", "loads"), [(True, 3), (False, 2)])
def test_an_engine_that_slept_loads_the_weights_again(
    embedded_policy: Policy, requests, tmp_path: Path, monkeypatch, sleeps, loads
):
    """What the process answers is how often it was asked to sleep and to load."""
    (tmp_path / "worker.py").write_text(HEAD + SLEEPER.replace("SLEEPS", str(sleeps)))
    monkeypatch.setattr(process, "_WORKER", tmp_path / "worker.py")
    remote = Remote(embedded_policy, tmp_path)
    remote.engine._host = replace(remote.engine._host, rest="sleep")
    remote.engine.refresh(0, lambda: CHAIN)
    pid = remote.pid
    remote.engine.sleep()
    remote.engine.sleep()
    assert remote.engine.refresh(4, lambda: CHAIN) > 0
    remote.engine.sleep()
    (completion,) = taken(remote.engine, requests[:1])  # of the same update
    assert completion.ids.tolist() == [2 if sleeps else 3, loads]
    assert remote.pid == pid
    remote.engine.close()
