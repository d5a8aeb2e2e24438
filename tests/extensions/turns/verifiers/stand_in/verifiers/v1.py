"""A taskset "counting" whose tasks say how their episode goes, and one that cannot be loaded."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
import uuid
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any


class AgentConfig:
    harness = None


class EvalClientConfig(SimpleNamespace): ...


class ModelContext(SimpleNamespace): ...


class Data(SimpleNamespace):
    @classmethod
    def model_validate(cls, data: dict[str, Any]) -> Data:
        return cls(**data)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return vars(self)


class Task:
    NEEDS_CONTAINER = False

    def __init__(self, data: Data, config: Any = None) -> None:
        self.data = data

    @classmethod
    def data_type(cls) -> type[Data]:
        return Data

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return []


class Taskset:
    config = SimpleNamespace(task=None)

    @classmethod
    def task_type(cls) -> type[Task]:
        return Task

    def toolsets(self, config: Any) -> list[Any]:
        return []

    def __iter__(self):
        return (Task(Data(idx=n, plot="plain", rounds=n)) for n in range(3))


class Environment:
    taskset = Taskset()

    @asynccontextmanager
    async def serving(self):
        yield

    async def run_episode(self, task: Task, context: ModelContext, on_trace: Any) -> Any:
        trace = SimpleNamespace(id=uuid.uuid4().hex, ok=True, errors=[], rewards={}, metrics={})
        on_trace(trace)
        talk = Talk(context.client, trace.id)
        try:
            await getattr(self, task.data.plot)(talk, task.data)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            if "maximum context length" in text:
                trace.metrics["refused"] = float(error.code)
            else:
                trace.ok, trace.errors = (
                    False,
                    [SimpleNamespace(type="ProviderError", message=text)],
                )
        if task.data.plot != "ungraded":
            trace.rewards["said"] = SimpleNamespace(value=float(len(talk.said)))
        trace.metrics["turns"] = float(len(talk.said))
        return SimpleNamespace(errors=[])

    async def plain(self, talk: Talk, data: Data) -> None:
        await talk.ask({"role": "user", "content": "begin"})
        for round in range(data.rounds):
            await talk.ask({"role": "user", "content": f"round {round}"})

    ungraded = plain

    async def rewrites(self, talk: Talk, data: Data) -> None:
        await talk.ask({"role": "user", "content": "begin"})
        talk.messages[0] = {"role": "user", "content": "begin again"}
        await talk.ask({"role": "user", "content": "round"})

    async def twice(self, talk: Talk, data: Data) -> None:
        begin = {"role": "user", "content": "begin"}
        await asyncio.gather(talk.ask(begin), Talk(talk.client, talk.session).ask(begin))

    async def samples(self, talk: Talk, data: Data) -> None:
        await talk.ask({"role": "user", "content": "begin"}, top_p=0.5)

    async def silent(self, talk: Talk, data: Data) -> None: ...

    async def raises(self, talk: Talk, data: Data) -> None:
        raise RuntimeError("no luck")

    async def waits(self, talk: Talk, data: Data) -> None:
        await asyncio.sleep(1000)

    async def blocks(self, talk: Talk, data: Data) -> None:
        time.sleep(1000)

    async def dies(self, talk: Talk, data: Data) -> None:
        await talk.ask({"role": "user", "content": "begin"})
        os._exit(3)


class Talk:
    """A conversation with the model at the other end of an endpoint."""

    def __init__(self, client: EvalClientConfig, session: str) -> None:
        self.client, self.session = client, session
        self.messages: list[dict[str, Any]] = []
        self.said: list[dict[str, Any]] = []

    async def ask(self, message: dict[str, Any], **sampling: Any) -> None:
        self.messages.append(message)
        body = {"model": "policy", "messages": self.messages, **sampling}
        request = urllib.request.Request(
            f"{self.client.base_url}/chat/completions",
            json.dumps(body).encode(),
            {
                "Authorization": f"Bearer {os.environ[self.client.api_key_var]}",
                "X-Session-ID": self.session,
            },
        )
        answer = json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(request).read()))
        (choice,) = answer["choices"]
        self.messages.append(choice["message"])
        self.said.append(choice)


def default_harness_id(name: str) -> str:
    return "bash"


def env_config_type(name: str, env: str = "") -> Any:
    if name != "counting":
        raise ModuleNotFoundError(f"taskset {name!r} not found")
    roles = {"player": SimpleNamespace(default=AgentConfig())}
    return SimpleNamespace(model_fields=roles)


def task_type(name: str) -> type[Task]:
    return Task


def resolve_env_config(config: dict[str, Any]) -> dict[str, Any]:
    seat = {"harness": {"id": "mugrpo-chat"}, "runtime": {"type": "subprocess"}}
    assert config == {"taskset": {"id": "counting"}, "player": seat}, config
    return config


def load_environment(config: dict[str, Any]) -> Environment:
    return Environment()
