"""Environments hang, die and lie: that costs their rollout, and the others go on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mugrpo.config.base import WorkerOptions
from mugrpo.disk.errors import BrokenReward
from mugrpo.extensions.turns import EnvironmentOptions
from mugrpo.extensions.turns.base import Reply
from mugrpo.extensions.turns.pool import EnvironmentPool
from tests.cases import table
from tests.waiting import alive, soon

GAMES = Path(__file__).parent / "games.py"


@contextmanager
def environments(
    name: str = "Misbehaving", workers: int = 1, seconds: float = 30.0, **options: Any
) -> Iterator[EnvironmentPool]:
    name = name if ":" in name else f"{GAMES}:{name}"
    limits = WorkerOptions(count=workers, timeout=seconds / 12, memory_mb=1024)
    found = EnvironmentPool(EnvironmentOptions.model_validate({"name": name, **options}), limits)
    try:
        yield found
    finally:
        found.close()


def say(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def do(*whats: str) -> dict[str, Any]:
    return {**say(""), "tool_calls": [call("do", what=what) for what in whats]}


def replies(found: EnvironmentPool, count: int) -> dict[int, Reply]:
    """Return the next `count` replies by rollout."""
    heard: dict[int, Reply] = {}
    while len(heard) < count:
        some = found.replies(300.0)
        assert some, f"only {heard} came"
        heard |= dict(some)
    return heard


def told(found: EnvironmentPool, rollout: int, message: dict[str, Any]) -> Reply:
    found.step(rollout, message)
    return replies(found, 1)[rollout]


def contents(reply: Reply) -> list[str]:
    return [message["content"] for message in reply.messages]


def test_calls_of_many_rollouts_do_not_mix():
    with environments("Counter", workers=2) as found:
        for rollout in range(20):
            found.begin(rollout, rollout, {"start": 100 * rollout})
        assert all(not reply.done for reply in replies(found, 20).values())
        for rollout in range(20):
            found.step(rollout, {**say(""), "tool_calls": [call("add", number=rollout)]})
        for rollout, reply in replies(found, 20).items():
            assert contents(reply) == [str(101 * rollout)]
        for rollout in range(20):
            found.step(rollout, say("done"))
        for rollout, reply in replies(found, 20).items():
            assert reply.done and reply.reward == pytest.approx(10.1 * rollout)
        assert found.replies(60.0) == []  # nothing is asked: it does not wait


def test_many_and_large_calls_and_replies_never_wait_for_each_other():
    """A socket holds about 200 KB, and fewer of many small messages."""
    with environments(seconds=10.0) as found:
        for rollout in range(600):
            found.begin(rollout, 7, {"answer": "x " + "y" * (100_000 if rollout % 50 == 0 else 1)})
        assert not any(reply.failure for reply in replies(found, 600).values())
        for rollout in range(600):
            found.step(rollout, do(*["long"] * (1 + rollout % 2), "z" * (1 + rollout % 3 * 20_000)))
        assert not any(reply.failure for reply in replies(found, 600).values())


@table(
    ("what", "failure", "unfinished"),
    [
        ("hang", "not finished within 2 seconds", True),
        ("memory", "Misbehaving: MemoryError", True),
        ("die", "the worker died (SIGKILL)", False),
    ],
)
def test_a_failure_costs_one_rollout_and_its_neighbours_go_on(what, failure, unfinished):
    with environments(seconds=2.0) as found:
        for rollout in range(3):
            found.begin(rollout, 7, {})
        replies(found, 3)
        assert [contents(told(found, n, do("first")))[0] for n in range(3)] == ["first"] * 3
        reply = told(found, 1, do(what))
        assert reply.done and reply.reward is None and not reply.messages
        assert (reply.failure, reply.unfinished) == (failure, unfinished)
        assert contents(told(found, 0, do("second"))) == ["first,second"]
        given = contents(told(found, 2, do("second", "third")))
        assert given == ["first,second", "first,second,third"]
        found.end(0)
        assert replies(found, 1)[0].reward == 2.0


def test_a_neighbour_that_replies_differently_when_repeated_fails_at_its_next_call():
    with environments(seconds=2.0) as found:
        for rollout in range(3):
            found.begin(rollout, 7, {})
        replies(found, 3)
        told(found, 0, do("clock"))
        assert told(found, 1, do("hang")).unfinished
        assert contents(told(found, 2, do("still here"))) == ["still"]
        reply = told(found, 0, do("second"))
        assert reply.done and "replied differently when its calls were repeated" in reply.failure


def test_random_numbers_depend_on_the_seed_and_the_call_alone():
    drawn = {"tool_calls": [call("draw")], **say("")}

    def draws(found: EnvironmentPool, rollout: int, seed: int) -> list[str]:
        found.begin(rollout, seed, {})
        first = contents(replies(found, 1)[rollout])
        return [*first, *(contents(told(found, rollout, drawn))[0] for _ in range(2))]

    with environments("Seeded") as found:
        alone = draws(found, 0, 2**63 + 5)
        for rollout in (1, 2):  # interleaved
            found.begin(rollout, 2**63 + 5, {})
        mixed = replies(found, 2)
        assert contents(mixed[1]) == contents(mixed[2]) == alone[:1]
        found.step(1, drawn)
        found.step(2, drawn)
        mixed = replies(found, 2)
        assert contents(mixed[1]) == contents(mixed[2]) == alone[1:2]
        assert len({*alone, *draws(found, 3, 5)}) == 6  # all differ, and with the seed, too
        found.end(0)
        logged = replies(found, 1)[0].logged
        assert logged == {
            "drawn": 5.5 + (2**63 % 2**32) % 10,
            "tools/calls": 2,
            "tools/failures": 0,
        }


@table("what", ["text", "nan"])
def test_a_reward_that_is_no_number_stops_the_run(what: str):
    with environments() as found:
        found.begin(0, 7, {"answer": what})
        replies(found, 1)
        found.end(0)
        with pytest.raises(BrokenReward, match=r"get_reward returned .*must be a number"):
            replies(found, 1)


def test_workers_end_with_what_they_started():
    with environments() as found:
        found.begin(0, 7, {"answer": "process"})
        pid = int(contents(replies(found, 1)[0])[0])
        assert alive(pid)
    assert soon(lambda: not alive(pid))
