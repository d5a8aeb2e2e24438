"""The program of a worker with an environment of verifiers, for many rollouts at once.

    PYTHON -P worker.py MEGABYTES SOCKET LIFELINE

It is run by its path under an interpreter with verifiers and without mugrpo, so it imports only the
standard library, and verifiers after its first message. Messages are JSON
(`processes/messages.py`):

    {"name", "kwargs"}                                           first, once -> {"ready", "tools"}
    {"begin": {"rollout", "task"}}                               -> {"asked"} ... {"done"}
    {"said": {"rollout", "message"}}                             answers what was asked
    {"full": {"rollout"}}                                        there is no room for an answer
    {"stop": {"rollout"}}                                        end it, without an answer
    {"problems": N}                                              -> {"problem"} ..., {"problems"}

"asked" has the messages and tools of a request to the endpoint, "done" the reward or the failure.
What cannot be loaded is answered with {"failed": "refused", "text"}.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import itertools
import math
import os
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_MODEL = "policy"
_KEY = "MUGRPO_API_KEY"  # verifiers passes no variable of such a name on to programs
_CHAT = "mugrpo-chat"
_FULL = "This model's maximum context length is reached"  # as vLLM begins that sentence
_TICK = 1.0  # seconds between heartbeats


class Worker:
    """The environment, its rollouts, and the endpoint that they ask."""

    def __init__(self, channel: Any, setup: dict[str, Any]) -> None:
        self._channel = channel
        self._name, self.ready = setup["name"], False
        self._sending = threading.Lock()
        self._endpoints = _beside("endpoint.py")
        self.environment = load(setup["name"], setup["kwargs"])
        self._answers: dict[int, queue.SimpleQueue[Any]] = {}
        self._rollouts: dict[str, int] = {}  # by the id of a trace
        self._episodes: dict[int, asyncio.Task[None]] = {}
        self._asked: dict[int, str] = {}  # the trace whose agent has asked first
        self._probes: dict[str, Any] = {}  # the first request of a trace that is only tried
        self._endpoint = self._endpoints.Endpoint(self._answer, _MODEL)
        os.environ[_KEY] = self._endpoint.key

    async def run(self, messages: asyncio.Queue[Any]) -> None:
        """Serve until the run hangs up."""
        async with self.environment.serving():
            self.send({"ready": True, "tools": await self._tools()})
            self.ready = True
            asyncio.get_running_loop().create_task(self._live())
            while True:
                message = await messages.get()
                if "begin" in message:
                    self._begin(**message["begin"])
                elif "problems" in message:
                    await self._list(message["problems"])
                else:
                    self._take(message)

    def send(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._channel.send(message)

    async def _live(self) -> None:
        """Tell the run that this loop turns, which an environment that blocks it prevents."""
        while True:
            with self._sending:
                self._channel.heartbeat()
            await asyncio.sleep(_TICK)

    def _begin(self, rollout: int, task: dict[str, Any]) -> None:
        self._answers[rollout] = queue.SimpleQueue()
        self._episodes[rollout] = asyncio.create_task(self._play(rollout, task))

    def _take(self, message: dict[str, Any]) -> None:
        ((kind, content),) = message.items()
        rollout = content["rollout"]
        if rollout not in self._answers:  # it has ended meanwhile
            return
        self._answers[rollout].put(content if kind == "said" else None)
        if kind == "stop":
            self._episodes[rollout].cancel()

    async def _play(self, rollout: int, data: dict[str, Any]) -> None:
        """Run the episode of a rollout and report its reward."""
        done: dict[str, Any] = {"rollout": rollout, "reward": None, "failure": None, "logged": {}}
        traces: list[Any] = []

        def minted(trace: Any) -> None:
            traces.append(trace)
            self._rollouts[trace.id] = rollout

        try:
            task = self._task(data)
            episode = await self.environment.run_episode(task, self._context(), on_trace=minted)
            done |= outcome(episode, traces, self._asked.get(rollout))
        except asyncio.CancelledError:
            return
        except Exception as error:
            done["failure"] = f"{type(error).__name__}: {error}"
        finally:
            self._answers.pop(rollout).put(None)  # in case a request still waits
            self._episodes.pop(rollout)
            self._asked.pop(rollout, None)
            for trace in traces:
                del self._rollouts[trace.id]
        self.send({"done": done})

    def _answer(self, session: str, body: dict[str, Any]) -> Any:
        """Return what the model says in a rollout. Called in a thread of the endpoint."""
        refused = self._endpoints.Refused
        if session in self._probes:
            self._probes[session] = self._probes[session] or body
            raise refused(_FULL)
        rollout = self._rollouts.get(session)
        if rollout is None or (answers := self._answers.get(rollout)) is None:
            raise refused(f"there is no rollout with {self._endpoints.SESSION} {session!r}", 404)
        if self._asked.setdefault(rollout, session) != session:
            raise refused("a second agent asks for the policy, but a rollout is one conversation")
        asked = {"messages": body["messages"], "tools": body.get("tools") or []}
        self.send({"asked": {"rollout": rollout, **asked}})
        if (said := answers.get()) is None:
            raise refused(_FULL)
        return said["message"]

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

    async def _list(self, count: int) -> None:
        """Send the first `count` problems, each with the messages of its first request."""
        sent = 0
        for task in itertools.islice(self.environment.taskset, count):
            first = await self._probe(task)
            data = task.data.model_dump(mode="json", exclude_none=True)
            answer = str(data.get("answer") or "(the environment judges)")
            named = {"id": f"{self._name}-{sent}", "answer": answer}
            self.send({"problem": {**named, "prompt": first["messages"], "task": data}})
            sent += 1
        self.send({"problems": sent})

    async def _probe(self, task: Any) -> Any:
        """Return the body of the first request in an episode of `task`, which then ends."""
        traces: list[Any] = []

        def minted(trace: Any) -> None:
            traces.append(trace)
            self._probes[trace.id] = None

        episode = await self.environment.run_episode(task, self._context(), on_trace=minted)
        bodies = [self._probes.pop(trace.id) for trace in traces]
        if not any(bodies):
            problems = [*episode.errors, *(error for trace in traces for error in trace.errors)]
            said = f": {problems[0].message}" if problems else ""
            raise ValueError(f"task {task.data.idx} asks the model nothing{said}")
        return next(body for body in bodies if body)


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


def outcome(episode: Any, traces: list[Any], asked: str | None) -> dict[str, Any]:
    """Return the reward and metrics of the trace that `asked` the policy, or what has failed."""
    errors = list(episode.errors)
    errors += [error for trace in traces if not trace.ok for error in trace.errors]
    if errors:
        last = errors[-1]
        return {"failure": f"{last.type}: {last.message or f'HTTP status {last.status_code}'}"}
    chosen = next((trace for trace in traces if trace.id == asked), None)
    if chosen is None:
        return {"failure": "the environment has ended without asking the model"}
    rewards = {name: r.value for name, r in chosen.rewards.items() if r is not None}
    reward = float(sum(rewards.values()))
    if not math.isfinite(reward):
        return {"failure": f"the reward is {reward}"}
    logged = {name: float(value) for name, value in _numbers(chosen.metrics, rewards)}
    return {"reward": reward if rewards else None, "logged": logged}


def _numbers(*tables: Any) -> Iterator[tuple[str, float]]:
    for table in tables:
        for name, value in table.items():
            if value is not None and math.isfinite(value):
                yield name, value


def _beside(file: str) -> Any:
    """Import a file of this folder, under a name that no other module has."""
    name = f"_mugrpo_{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(name, _HERE / file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _channel() -> Any:
    """Return the channel to the run. Its module is imported by path, as mugrpo may be missing."""
    sys.path.insert(0, str(_HERE.parents[1]))
    child = importlib.import_module("processes.child")
    sys.path.pop(0)
    return child.Channel()


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
        channel.send({"failed": "refused", "text": text})


def main() -> None:
    channel = _channel()
    setup = channel.receive()
    sys.modules["processes.child"].limit_memory(setup["memory_mb"])
    sys.path.insert(0, str(_HERE / "extension"))
    os.environ["NO_PROXY"] = "127.0.0.1,localhost"
    asyncio.run(_serve(channel, setup))


if __name__ == "__main__":
    main()
