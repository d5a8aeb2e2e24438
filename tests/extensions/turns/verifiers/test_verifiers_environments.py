"""Environments of verifiers, with a stand-in for the package: exact tokens, and what goes wrong."""

import re
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mugrpo.config.base import WorkerOptions
from mugrpo.extensions.turns import EnvironmentOptions
from mugrpo.extensions.turns.base import Reply
from mugrpo.extensions.turns.verifiers.pool import Conversation, Rewritten, VerifiersEnvironments
from tests.cases import table

STAND_IN = Path(__file__).with_name("stand_in")
BEGIN = ({"role": "user", "content": "begin"},)
SAY = {"role": "assistant", "content": "so"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has the stand-in and no mugrpo."""
    script = tmp_path_factory.mktemp("bin") / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={STAND_IN} exec {sys.executable} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


@contextmanager
def made(python: str, seconds: float = 30.0) -> Iterator[VerifiersEnvironments]:
    options = EnvironmentOptions(name="verifiers:counting", python=python)
    limits = WorkerOptions(count=1, timeout=seconds / 12)
    with closing(VerifiersEnvironments(options, limits, own_reward=True)) as found:
        yield found


@pytest.fixture(scope="module")
def environments(python: str) -> Iterator[VerifiersEnvironments]:
    with made(python) as found:
        yield found


def row(plot: str, rounds: int = 0) -> dict[str, Any]:
    return {"prompt": BEGIN, "task": {"idx": 0, "plot": plot, "rounds": rounds}}


def reply(environments: VerifiersEnvironments, rollout: int) -> Reply:
    """Return the next reply to `rollout`, which is the only one that waits."""
    ((number, found),) = environments.replies(60)
    assert number == rollout
    return found


def test_an_episode_of_two_turns_and_one_without_room_are_graded(environments):
    environments.begin(7, 0, row("plain", rounds=1))
    assert reply(environments, 7) == Reply(messages=[])
    environments.step(7, SAY)
    assert list(reply(environments, 7).messages) == [{"role": "user", "content": "round 0"}]
    environments.step(7, SAY)
    done = reply(environments, 7)
    assert (done.done, done.reward, done.failure) == (True, 2.0, None)
    assert done.logged == {"said": 2.0, "turns": 2.0}
    environments.begin(0, 0, row("plain", rounds=1))
    reply(environments, 0)
    environments.step(0, SAY)
    reply(environments, 0)
    environments.end(0)
    done = reply(environments, 0)
    assert (done.done, done.reward, done.failure) == (True, 1.0, None)
    assert done.logged["refused"] == 400


def test_many_rollouts_share_a_worker(environments):
    for rollout in range(20):
        environments.begin(rollout, 0, row("plain", rounds=rollout % 3))
    rewards: dict[int, float | None] = {}
    while len(rewards) < 20:
        for rollout, found in environments.replies(30):
            if found.done:
                rewards[rollout] = found.reward
            else:
                environments.step(rollout, SAY)
    assert rewards == {rollout: 1.0 + rollout % 3 for rollout in range(20)}


@table(
    ("plot", "reason"),
    [
        ("rewrites", r"message 0 of the conversation \(user\) is missing or another one"),
        ("twice", "two messages of the model at once|message 1 .* is missing"),
        ("silent", "has ended without asking the model"),
        ("raises", "RuntimeError: no luck"),
        # the logprobs of the engine would be those of another distribution
        ("samples", "ProviderError: (?s:.*)top_p = 0.5 is refused"),
    ],
)
def test_what_is_no_single_conversation_fails_its_rollout(environments, plot: str, reason: str):
    environments.begin(0, 0, row(plot))
    found = reply(environments, 0)
    if not found.done:  # what is wrong shows while the model speaks, or after it
        environments.replies(0.5)
        environments.step(0, SAY)
        found = reply(environments, 0)
    assert found.done
    assert re.search(reason, str(found.failure))
    assert found.reward is None


def test_a_rollout_that_waits_too_long_fails_alone(python):
    with made(python, seconds=3.0) as environments:
        environments.begin(0, 0, row("waits"))
        environments.begin(1, 0, row("plain"))
        assert reply(environments, 1) == Reply(messages=[])  # we may take longer than the limit
        slow = reply(environments, 0)
        assert (slow.unfinished, slow.failure) == (True, "not finished within 3 seconds")
        environments.step(1, SAY)
        assert reply(environments, 1).reward == 1.0


@table(("plot", "reason"), [("dies", "worker died"), ("blocks", "not finished")])
def test_a_worker_that_dies_or_hangs_is_replaced(python, plot: str, reason: str):
    with made(python, seconds=3.0) as environments:
        environments.begin(0, 0, row(plot))
        found = reply(environments, 0)
        if plot == "dies":
            environments.step(0, SAY)
            found = reply(environments, 0)
        assert reason in str(found.failure)
        environments.begin(1, 0, row("plain"))
        assert reply(environments, 1) == Reply(messages=[])


def test_problems_are_what_the_first_requests_say(environments):
    rows = list(environments.problems(2))
    assert [one["prompt"] for one in rows] == [list(BEGIN)] * 2
    assert [one["task"]["rounds"] for one in rows] == [0, 1]


@table(
    ("options", "sentence"),
    [
        ({"name": "verifiers:counting"}, "needs environment.python"),
        ({"name": "verifiers:counting", "python": "p", "tools": ["m:f"]}, "tools of its own"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], sentence: str):
    found = EnvironmentOptions(**options)
    assert sentence in " ".join(found.faults("chat", own_reward=False))
    plain = any("chat" in one for one in found.faults("plain", own_reward=False))
    assert plain == ("verifiers" in options["name"])


def called(arguments: Any, number: str | None = None) -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments}
    named = {} if number is None else {"id": number}
    return {"role": "assistant", "content": "", "tool_calls": [{"function": function, **named}]}


def test_calls_are_written_as_openai_has_them_and_recognized():
    """Arguments come back as JSON with other spaces, and content as null: the same message."""
    conversation = Conversation(BEGIN)
    written = conversation.said(called({"a": 1, "b": [2]}))
    (call,) = written["tool_calls"]
    assert call["function"]["arguments"] == '{"a": 1, "b": [2]}'
    again = called('{"a":1,"b":[2]}', call["id"])
    answer = {"role": "tool", "content": "3", "tool_call_id": call["id"]}
    added = conversation.added([*BEGIN, {**again, "content": None}, answer])
    assert added == [answer]
    named = [*BEGIN, again, {**answer, "name": "add"}]
    assert conversation.added(named) == []  # the same message, with the name of its tool
    with pytest.raises(Rewritten, match="message 1"):
        conversation.added([*BEGIN, called('{"a":2,"b":[2]}', call["id"]), answer])


@table(
    ("messages", "reason"),
    [
        ([], "message 0 of the conversation"),
        ([*BEGIN, {"role": "system", "content": "Be brief."}], "role 'system'"),
        ([*BEGIN, {"role": "user", "content": [{"type": "image_url"}]}], "other than text"),
    ],
)
def test_what_no_conversation_can_take(messages: list[Any], reason: str):
    with pytest.raises(Rewritten, match=reason):
        Conversation(BEGIN).added(messages)
