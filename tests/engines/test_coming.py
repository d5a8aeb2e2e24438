"""Requests that come while an engine works on others."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mugrpo.config.engines import ContinuousOptions, HFOptions
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Completion, Request
from mugrpo.engines.continuous import ContinuousEngine
from mugrpo.engines.hf import HFEngine
from mugrpo.engines.process import Host, RemoteEngine
from mugrpo.model.policy import Policy
from mugrpo.processes.messages import from_json
from tests.builders import PROMPTS, encoded, tiny_policy
from tests.cases import table

LIMIT = 12


def requests_of(policy: Policy, count: int) -> list[Request]:
    return [
        Request(encoded(policy, PROMPTS[i % len(PROMPTS)]), 70 + i, 3 + i % 7) for i in range(count)
    ]


def taken(engine, requests, more: Iterable[Sequence[Request]] = ()) -> list[Completion]:
    """Return the completions by their indices."""
    completions: dict[int, Completion] = {}
    for decoded in engine.generate(requests, temperature=1.0, max_new_tokens=LIMIT, more=more):
        assert not completions.keys() & dict(decoded.completions).keys()
        completions.update(decoded.completions)
    return [completions[index] for index in range(len(completions))]


def endless(form: str) -> Policy:
    """Return a policy whose responses end only at their limits."""
    policy = tiny_policy(form)
    policy.stop_ids = []
    return policy


@table("first", [0, 2, 9])
def test_requests_that_come_later_get_the_responses_that_they_would_get_at_once(first: int):
    """Nothing at first, then one or more at a time, with steps at which none comes."""
    policy = endless("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(slots=4))
    requests = requests_of(policy, 9)
    expected = taken(engine, requests)
    assert [len(c.ids) for c in expected] == [3 + i % 7 for i in range(9)]
    assert {c.finish_reason for c in expected} == {FinishReason.LENGTH}
    cuts = sorted({first, 3, 4, 9} - set(range(first)))
    parts = [requests[a:b] for a, b in pairwise(cuts)]
    spaced = [part for piece in parts for part in ((), piece, ())]
    completions = taken(engine, requests[:first], spaced)
    for ours, theirs in zip(completions, expected, strict=True):
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
        assert ours.finish_reason is theirs.finish_reason


def test_a_request_begins_beside_those_that_run_and_an_idle_engine_asks_again():
    """Two responses of four tokens; a third request comes after the first step, for two tokens.

    An admission draws a first token and the same step decodes a second. So the third ends in the
    step it begins in, two steps before the others. Then the engine is idle until a fourth comes.
    """
    policy = endless("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(slots=4))
    prompt = encoded(policy, PROMPTS[0])
    two = [Request(prompt, seed, 4) for seed in (0, 1)]
    third, fourth = [Request(prompt, 2, 2)], [Request(prompt, 3, 2)]
    more = [(), third, (), (), (), fourth]
    decoded = list(engine.generate(two, temperature=1.0, max_new_tokens=LIMIT, more=more))
    ends = [[index for index, _ in d.completions] for d in decoded]
    assert ends == [[], [2], [0, 1], [], [], [3], []]
    # 2 + 1 + 1 first tokens; two slots in the first step, then three, of which some are idle.
    assert [d.slots for d in decoded] == [2 + 2, 1 + 3, 3, 0, 0, 1 + 3, 0]


@table("name", ["hf", "continuous"])
def test_a_request_may_have_a_lower_limit_than_its_call(name: str):
    """Only the tokens after the limit are missing, and it is the reason for the end."""
    policy = tiny_policy("llama")
    policy.stop_ids = list(range(0, policy.vocab_size, 6))
    prompt = encoded(policy, PROMPTS[0])
    engine = (
        HFEngine(policy, HFOptions(slots=8))
        if name == "hf"
        else ContinuousEngine(policy, ContinuousOptions(slots=8))
    )
    whole = taken(engine, [Request(prompt, seed) for seed in range(16)])
    cut = taken(engine, [Request(prompt, seed, 4) for seed in range(16)])
    assert {len(c.ids) <= 4 for c in whole} == {True, False}
    for ours, theirs in zip(cut, whole, strict=True):
        np.testing.assert_array_equal(ours.ids, theirs.ids[:4])
        longer = len(theirs.ids) > 4
        assert ours.finish_reason is (FinishReason.LENGTH if longer else theirs.finish_reason)


class Worker:
    """A started process that answers each request with its seed, one request per message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, object]] = []
        self.tasks: list[list[int]] = []  # the indices of each

    def send(self, text: str) -> None:
        message = from_json(text)
        if "load" in message:
            self.messages.append({"loaded": True})
            return
        task = message["generate"]
        self.tasks.append([index for index, *_ in task["requests"]])
        for index, _, seed, limit in task["requests"]:
            ids = np.full(limit or task["max_new_tokens"], seed, np.int32)
            entry = {
                "index": index,
                "ids": ids.tobytes(),
                "logprobs": np.zeros(len(ids), np.float32).tobytes(),
                "reason": "length",
            }
            self.messages.append({"completions": [entry], "slots": len(ids)})
        self.messages.append({"end": True})

    def hear(self, patience: float = 0.0):
        return self.messages.pop(0) if self.messages else None

    def end(self) -> str:
        return ""


def test_a_process_gets_requests_while_it_works_and_after_it_has_been_idle():
    """Two requests, one while they run, none for a while, and one for the idle process."""
    worker = Worker()
    host = Host(None, {}, {}, Path("log"), 100, "stay", slots=2)
    engine = RemoteEngine(host, lambda: worker, pytest.fail, lambda: None)
    prompt = np.array([1, 2], np.int32)
    requests = [Request(prompt, seed, seed) for seed in (3, 4, 5, 6)]
    more = [[requests[2]], (), (), (), (), (), [requests[3]]]
    completions = taken(engine, requests[:2], more)
    assert [c.ids.tolist() for c in completions] == [[n] * n for n in (3, 4, 5, 6)]
    assert worker.tasks == [[0, 1], [2], [3]]
