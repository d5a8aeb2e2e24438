"""The example with OpenEnv, against its own server. Needs openenv-core in this environment."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mugrpo.extensions.turns import EnvironmentOptions
from mugrpo.extensions.turns.worker import EnvironmentHost
from tests.runs import ROOT
from tests.waiting import until

pytest.importorskip("openenv")
pytestmark = pytest.mark.long

HERE = ROOT / "examples" / "openenv"


def listens(log: Path) -> bool:
    return "Application startup complete" in log.read_text()


def told(host: EnvironmentHost, game: int, number: int, **call: Any) -> dict[str, Any]:
    """Return the host's reply to call `number` of a game's rollout."""
    answer = host.answer({"rollout": game, "seed": 7 + game, "number": number, **call})
    reply: dict[str, Any] = answer["reply"]
    assert reply["failure"] is None, reply
    return reply


def guessed(host: EnvironmentHost, game: int, number: int, guess: int) -> str:
    function = {"name": "guess", "arguments": {"number": guess}}
    calls = [{"type": "function", "function": function}]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    text: str = told(host, game, number, call="step", message=message)["messages"][0]["content"]
    return text


def test_rollouts_have_a_game_each_on_the_server(tmp_path: Path):
    """Games that are played at once keep secrets of their own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "log"
    words = [sys.executable, "-m", "uvicorn", "server:app", "--port", str(port)]
    with open(log, "wb") as out:
        server = subprocess.Popen(words, cwd=HERE, stdout=out, stderr=out)
    try:
        until(lambda: listens(log), seconds=60)
        options = {
            "name": f"{HERE / 'guess.py'}:Guess",
            "kwargs": {"url": f"http://127.0.0.1:{port}"},
        }
        host = EnvironmentHost(EnvironmentOptions.model_validate(options), own_reward=True)
        (tool,) = host.schemas()
        assert tool["function"]["parameters"]["properties"]["number"]["type"] == "integer"
        for game, answer in enumerate("52"):
            begun = told(host, game, 0, call="begin", row={"answer": answer})
            assert begun["messages"][0]["content"] == " It is between 1 and 7."
        assert [guessed(host, game, 1, 3) for game in (0, 1)] == ["higher", "lower"]
        assert [guessed(host, game, 2, guess) for game, guess in ((0, 5), (1, 1))] == [
            *("right", "higher")
        ]
        last = {"role": "assistant", "content": "Done."}
        assert told(host, 0, 3, call="step", message=last)["reward"] == 1.0
        assert told(host, 1, 3, call="step", message=last)["reward"] == 0.0
        again = told(host, 2, 0, call="begin", row={"answer": "4"})  # in an object used before
        assert again["messages"] and guessed(host, 2, 1, 4) == "right"
    finally:
        server.terminate()
        server.wait(20)
