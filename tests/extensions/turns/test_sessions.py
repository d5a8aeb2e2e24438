"""TRL's contract and functions of messages, in this process. Messages are written by hand."""

from itertools import count
from typing import Any

import pytest

from mugrpo.config.load import load_config
from mugrpo.disk.errors import BrokenReward, UsageError
from mugrpo.extensions.turns import EnvironmentOptions, worker
from mugrpo.extensions.turns.base import Reply
from mugrpo.processes.functions import load_function
from tests.cases import table
from tests.extensions.turns import games
from tests.extensions.turns.test_environment_pool import GAMES, call, say, told


class Here:
    """What a worker does, in this process. "a:NAME" is the NAME of `code`, which is only here."""

    def __init__(self, own_reward: bool = False, code: Any = None, **options: Any):
        def load(place: str, what: str) -> Any:
            return (code or {}).get(place) or load_function(place, what)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "load_function", load)
            given = EnvironmentOptions.model_validate(options)
            self.host = worker.EnvironmentHost(given, own_reward=own_reward)
        self._calls, self._replies = count(), list[tuple[int, Reply]]()

    def begin(self, rollout: int, seed: int, row: dict[str, Any]) -> None:
        self._answer(rollout, call="begin", seed=seed, row=row)

    def step(self, rollout: int, message: dict[str, Any]) -> None:
        self._answer(rollout, call="step", message=message)

    def end(self, rollout: int) -> None:
        self._answer(rollout, call="end")

    def replies(self, seconds: float) -> list[tuple[int, Reply]]:
        replies, self._replies = self._replies, []
        return replies

    def _answer(self, rollout: int, **call: Any) -> None:
        number = next(self._calls)
        answer = self.host.answer({"rollout": rollout, "seed": 7, "number": number, **call})
        if "broken" in answer:
            raise BrokenReward(answer["broken"])
        self._replies.append((rollout, Reply(**answer["reply"])))


def held(code: Any, **options: Any) -> Here:
    return Here(code={"a:code": code}, name="a:code", **options)


def begun(code: Any, row: dict[str, Any] | None = None, **options: Any) -> Here:
    found = held(code, **options)
    found.begin(0, 7, {"prompt": "3", **(row or {})})
    return found


def test_a_conversation_with_trls_contract():
    found = begun(games.Counter, {"start": 3, "answer": "x"})
    [(rollout, began)] = found.replies(0)
    assert rollout == 0 and began.messages == [{"role": "user", "content": " It is 3."}]
    calls = [call("add", number=4), call("later", number=1), call("add", number=2)]
    reply = told(found, 0, {**say("thinking"), "tool_calls": calls})
    assert reply.messages == [
        {"role": "tool", "name": "add", "content": "7"},
        {"role": "tool", "name": "later", "content": "10"},  # coroutines run after the others
        {"role": "tool", "name": "add", "content": "9"},
    ]
    last = told(found, 0, say("It is 10."))
    assert last == Reply(done=True, reward=1.0, logged={"tools/calls": 3, "tools/failures": 0})


def test_bad_calls_are_told_to_the_model_in_trls_words():
    found = begun(games.Misbehaving)
    assert found.replies(0)[0][1].messages == ()
    calls = [call("undo"), call("do"), call("do", what="raise no such thing"), call("reset")]
    calls += [call("_hidden"), {"type": "function"}]
    calls += [call("do", what="surrogate"), call("do", what="last")]
    reply = told(found, 0, {**say(""), "tool_calls": calls})
    missing = "Misbehaving.do() missing 1 required positional argument: 'what'"
    assert [(m["name"], m["content"]) for m in reply.messages] == [
        ("undo", "{'error': 'Tool undo not found.'}"),
        ("do", f"{{'error': \"{missing}\"}}"),
        ("do", "{'error': 'no such thing'}"),
        ("reset", "{'error': 'Tool reset not found.'}"),
        ("_hidden", "{'error': 'Tool _hidden not found.'}"),
        ("unknown", "{'error': \"'function'\"}"),
        ("do", "?!"),  # half a character, which no tokenizer reads
        ("do", "raise,surrogate,last"),
    ]
    found.end(0)
    [(_, last)] = found.replies(0)
    assert (last.reward, last.logged) == (3.0, {"tools/calls": 8, "tools/failures": 6})


def test_an_object_is_made_once_and_reset_often():
    made: list[games.Counter] = []

    class Counted(games.Counter):
        def __init__(self) -> None:
            made.append(self)

    found = held(Counted)
    for rollout in range(3):
        found.begin(rollout, 7, {"start": rollout})
        found.end(rollout)
    assert [reply.reward for _, reply in found.replies(0) if reply.done] == [0.0, 0.1, 0.2]
    assert len(made) == 1
    for rollout in range(3):
        found.begin(rollout, 7, {})
    assert len(made) == 3  # as many as there are rollouts at once


def test_a_game_by_a_function_of_messages():
    """Each guess after the first costs a quarter; the third that is wrong ends it."""
    found = begun(games.higher, {"answer": "5"})
    assert found.replies(0) == [(0, Reply())]
    assert told(found, 0, say("3")).messages == [{"role": "user", "content": "higher"}]
    assert told(found, 0, say("7")).messages == [{"role": "user", "content": "lower"}]
    assert told(found, 0, say("5")) == Reply(done=True, reward=0.5)
    found.begin(1, 7, {"prompt": [{"role": "user", "content": "?"}], "answer": "9"})
    found.replies(0)
    assert [told(found, 1, say(guess)).done for guess in "1234"] == [False, False, False, True]
    found.begin(2, 7, {"prompt": "?", "answer": "9"})
    found.end(2)
    assert found.replies(0)[-1] == (2, Reply(done=True, reward=0.0))  # it has not ended by itself


@table("answer", ["list", "role", "set"])
def test_a_function_that_returns_something_else_stops_the_run(answer: str):
    found = begun(games.nonsense, {"answer": answer})
    with pytest.raises(BrokenReward, match=r"code returned .*it must be the text of the next"):
        found.step(0, say("x"))


def test_tools_alone():
    def halve(number: int) -> float:
        """Halve a number.

        Args:
            number: The number.
        """
        return number / 2

    found = Here(code={"a:halve": halve}, tools=(f"{GAMES}:double", "a:halve"))
    tools = found.host.schemas()
    assert [tool["function"]["name"] for tool in tools] == ["double", "halve"]
    given = tools[0]["function"]["parameters"]["properties"]
    assert given == {"number": {"type": "integer", "description": "The number."}}
    found.begin(0, 7, {"prompt": "x"})
    found.replies(0)
    calls = [call("double", number=4), call("halve", number=3)]
    reply = told(found, 0, {**say(""), "tool_calls": calls})
    assert [message["content"] for message in reply.messages] == ["8", "1.5"]
    assert told(found, 0, say("8")).reward is None


@table(
    ("code", "options", "own_reward", "sentence"),
    [
        (games.Resetless, {}, False, "needs a method `reset`"),
        (games.Bare, {}, False, "a method that a model can call"),
        (games.Unmade, {"kwargs": {"size": 3}}, False, "cannot be made: ValueError: no size 3"),
        (games.higher, {"tools": (f"{GAMES}:double",)}, False, "is a function, so it has no"),
        (games.Seeded, {}, True, "has no `get_reward`, which the reward environment asks for"),
    ],
)
def test_what_does_not_fit_together_is_refused(code, options, own_reward, sentence):
    with pytest.raises(UsageError, match=sentence):
        held(code, own_reward=own_reward, **options)


@table(
    ("words", "sentence"),
    [
        ('environment.tools=["calc:add"]', "environment.tools needs prompt.form = 'chat'"),
        ("environment.name=game", 'write "module:name" or "path/to/file.py:name"'),
        ('task.name=dataset task.data=x task.rewards=["environment"]', "comes from an environment"),
    ],
)
def test_options_of_an_environment_that_do_not_work_are_refused(words, sentence):
    with pytest.raises(UsageError, match=sentence):
        load_config(None, [f"--{word}" for word in words.split()])
