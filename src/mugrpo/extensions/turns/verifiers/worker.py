"""The program of a worker with an environment of verifiers, for many rollouts at once.

    PYTHON -P worker.py MEGABYTES SOCKET LIFELINE

It is run by its path under an interpreter with verifiers and without mugrpo, so it imports only the
standard library, and verifiers after its first message. Messages are JSON
(`processes/messages.py`):

    {"name", "kwargs", "own_reward"}                 first, once -> {"ready", "tools"}
    [N, {"call": "begin", "row"}]                    -> {"asked"} ... {"done"}
    [N, {"call": "step", "message"}]                 answers what was asked
    [N, {"call": "end"}]                             there is no room for an answer
    [N, {"call": "stop"}]                            end it, without an answer
    {"problems": count}                              -> {"problems"}

N is the rollout. "asked" has the messages and tools of a request to the endpoint, "done" the reward
or the failure. What cannot be loaded is answered with {"refused": text}.
"""

import asyncio
import importlib
import itertools
import math
import os
import queue
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_MODEL = "policy"
_KEY = "MUGRPO_API_KEY"  # verifiers passes no variable of such a name on to programs
_CHAT = "mugrpo-chat"
_FULL = "This model's maximum context length is reached"  # as vLLM begins that sentence
_TICK = 1.0  # seconds between heartbeats


@dataclass
class _Episode:
    """An episode of the environment: a rollout's, or one that only tells its first request."""

    rollout: int | None = None
    answers: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    asked: str = ""  # the trace whose agent has asked first
    first: dict[str, Any] | None = None  # its first request
    traces: list[Any] = field(default_factory=list)


class Worker:
    """The environment, its episodes, and the endpoint that they ask."""

    def __init__(self, channel: Any, setup: dict[str, Any]) -> None:
        self._channel = channel
        self._name, self._own_reward, self.ready = setup["name"], setup["own_reward"], False
        self._sending = threading.Lock()
        self._endpoints = importlib.import_module("mugrpo_endpoint")
        self.environment = load(setup["name"], setup["kwargs"])
        self._live: dict[int, tuple[_Episode, asyncio.Task[None]]] = {}  # by rollout
        self._traces: dict[str, _Episode] = {}  # by a trace's id
        self._endpoint = self._endpoints.Endpoint(self._answer, _MODEL)
        os.environ[_KEY] = self._endpoint.key

    async def run(self, messages: asyncio.Queue[Any]) -> None:
        """Serve until the run hangs up."""
        async with self.environment.serving():
            self.send({"ready": True, "tools": await self._tools()})
            self.ready = True
            beating = asyncio.create_task(self._beat())
            while not beating.done():
                message = await messages.get()
                if isinstance(message, list):
                    self._take(*message)
                else:
                    self.send({"problems": await self._list(message["problems"])})

    def send(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._channel.send(message)

    async def _beat(self) -> None:
        """Tell the run that this loop turns, which an environment that blocks it prevents."""
        while True:
            with self._sending:
                self._channel.heartbeat()
            await asyncio.sleep(_TICK)

    def _take(self, rollout: int, message: dict[str, Any]) -> None:
        call = message["call"]
        if call == "begin":
            episode = _Episode(rollout)
            playing = asyncio.create_task(self._play(episode, message["row"]["task"]))
            self._live[rollout] = episode, playing
        elif rollout in self._live:  # or it has ended meanwhile
            episode, playing = self._live[rollout]
            episode.answers.put(message.get("message"))
            if call == "stop":
                playing.cancel()

    async def _play(self, episode: _Episode, data: dict[str, Any]) -> None:
        """Run the episode of a rollout and report its reward."""
        done: dict[str, Any] = {"reward": None, "failure": None, "logged": {}}
        try:
            done |= outcome(await self._run(episode, self._task(data)), episode)
        except Exception as error:
            done["failure"] = f"{type(error).__name__}: {error}"
        finally:
            assert episode.rollout is not None
            del self._live[episode.rollout]
            episode.answers.put(None)  # in case a request still waits
        if self._own_reward and done["reward"] is None and done["failure"] is None:
            lacking = "has given no reward, which the reward environment asks for"
            self.send({"broken": f"{self._name} {lacking}"})
        self.send({"rollout": episode.rollout, "done": done})

    async def _run(self, episode: _Episode, task: Any) -> Any:
        def minted(trace: Any) -> None:
            episode.traces.append(trace)
            self._traces[trace.id] = episode

        try:
            return await self.environment.run_episode(task, self._context(), on_trace=minted)
        finally:
            for trace in episode.traces:
                del self._traces[trace.id]

    def _answer(self, session: str, body: dict[str, Any]) -> Any:
        """Return what the model says in an episode. Called in a thread of the endpoint."""
        refused = self._endpoints.Refused
        if (episode := self._traces.get(session)) is None:
            raise refused(f"there is no rollout with {self._endpoints.SESSION} {session!r}", 404)
        episode.first = episode.first or body
        if episode.rollout is None:
            raise refused(_FULL)
        episode.asked = episode.asked or session
        if episode.asked != session:
            raise refused("a second agent asks for the policy, but a rollout is one conversation")
        asked = {"messages": body["messages"], "tools": body.get("tools") or []}
        self.send({"rollout": episode.rollout, "asked": asked})
        if (said := episode.answers.get()) is None:
            raise refused(_FULL)
        return said

    def _task(self, data: dict[str, Any]) -> Any:
        kind = type(self.environment.taskset).task_type()
        return kind(kind.data_type().model_validate(data), self.environment.taskset.config.task)

    def _context(self) -> Any:
        import verifiers.v1 as vf

        patient = {"connect": None}  # a busy machine may take long to accept
        url = self._endpoint.url
        client = vf.EvalClientConfig(base_url=url, api_key_var=_KEY, timeout=patient)
        return vf.ModelContext(model=_MODEL, client=client)

    async def _tools(self) -> list[Any]:
        """Return the tools of the policy's requests, which all tasks of a taskset have."""
        taskset, kind = self.environment.taskset, type(self.environment.taskset).task_type()
        if taskset.toolsets(taskset.config) or kind.toolsets(taskset.config.task):
            first = await self._probe(next(iter(taskset)))
            return list(first.get("tools") or [])
        return []

    async def _list(self, count: int) -> list[dict[str, Any]]:
        """Return the first `count` problems, each with the messages of its first request."""
        rows: list[dict[str, Any]] = []
        for task in itertools.islice(self.environment.taskset, count):
            first = await self._probe(task)
            data = task.data.model_dump(mode="json", exclude_none=True)
            answer = str(data.get("answer") or "(the environment judges)")
            named = {"id": f"{self._name}-{len(rows)}", "answer": answer}
            rows.append({**named, "prompt": first["messages"], "task": data})
        return rows

    async def _probe(self, task: Any) -> dict[str, Any]:
        """Return the body of the first request in an episode of `task`, which then ends."""
        episode = _Episode()
        ended = await self._run(episode, task)
        if episode.first is None:
            errors = [*ended.errors, *(error for t in episode.traces for error in t.errors)]
            said = f": {errors[0].message}" if errors else ""
            raise ValueError(f"task {task.data.idx} asks the model nothing{said}")
        return episode.first


def load(name: str, kwargs: dict[str, Any]) -> Any:
    """Return the environment of the taskset `name`, with `kwargs` as its config.

    Its roles talk to the model in this process, unless the environment or `kwargs` chooses a
    harness for them, and on this machine instead of in verifiers' cloud.
    """
    import verifiers.v1 as vf

    config = {**kwargs, "taskset": {**kwargs.get("taskset", {}), "id": name}}
    kind = vf.env_config_type(name, config.get("id", ""))
    by_default = vf.default_harness_id(name)
    fields = kind.model_fields.items()
    roles = {n: f.default for n, f in fields if isinstance(f.default, vf.AgentConfig)}
    for role, declared in roles.items():
        seat = {"runtime": {"type": "subprocess"}, **config.get(role, {})}
        chosen = declared.harness.id if declared.harness else by_default
        if chosen in ("bash", "null"):  # "bash" would run the model's commands on this machine
            seat = {"harness": {"id": _CHAT}, **seat}
        config[role] = seat
    free = [role for role in roles if "client" not in config[role]]
    if len(free) > 1:
        raise ValueError(
            f"{name} has the roles {' and '.join(free)}, but a rollout is the conversation of one; "
            f"give the others a client of their own in environment.kwargs"
        )
    task = vf.task_type(name)
    if task.NEEDS_CONTAINER:
        raise ValueError(f"{name} needs a container for each task, which a worker does not start")
    return vf.load_environment(vf.resolve_env_config(config))


def outcome(ended: Any, episode: _Episode) -> dict[str, Any]:
    """Return the reward and metrics of the trace that asked the policy, or what has failed."""
    errors = list(ended.errors)
    errors += [error for trace in episode.traces if not trace.ok for error in trace.errors]
    if errors:
        last = errors[-1]
        return {"failure": f"{last.type}: {last.message or f'HTTP status {last.status_code}'}"}
    chosen = next((trace for trace in episode.traces if trace.id == episode.asked), None)
    if chosen is None:
        return {"failure": "the environment has ended without asking the model"}
    rewards = {name: r.value for name, r in chosen.rewards.items() if r is not None}
    reward = float(sum(rewards.values()))
    if not math.isfinite(reward):
        return {"failure": f"the reward is {reward}"}
    values = {**chosen.metrics, **rewards}.items()
    logged = {n: float(value) for n, value in values if value is not None and math.isfinite(value)}
    return {"reward": reward if rewards else None, "logged": logged}


async def _serve(channel: Any, setup: dict[str, Any]) -> None:
    messages: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        while True:  # ends with the process, when the run hangs up
            loop.call_soon_threadsafe(messages.put_nowait, channel.receive())

    worker = None
    try:
        worker = Worker(channel, setup)
        threading.Thread(target=read, daemon=True).start()
        await worker.run(messages)
    except Exception as error:
        if worker is not None and worker.ready:
            raise
        text = f"{sys.executable}: {type(error).__name__}: {str(error).strip()}"
        channel.send({"refused": f"the environment {setup['name']} cannot be loaded by {text}"})


def main() -> None:
    sys.path.insert(0, str(_HERE.parents[2]))  # by path, as mugrpo may be missing here
    child = importlib.import_module("processes.child")
    sys.path[0] = str(_HERE / "extension")
    channel = child.Channel()
    setup = channel.receive()
    child.limit_memory(setup["memory_mb"])
    os.environ["NO_PROXY"] = "127.0.0.1,localhost"
    asyncio.run(_serve(channel, setup))


if __name__ == "__main__":
    main()
