"""An engine in its own process: the run sends it requests, and restarts it if it dies.

The process runs `worker.py`, possibly under an interpreter with a different environment.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch

from mugrpo.config.cores import cores
from mugrpo.config.engines import RESTARTS, SILENCE
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.engines.base import WAIT, Completion, Decoded, More, Request, checked
from mugrpo.processes.messages import to_json
from mugrpo.processes.peer import TICK, Peer, PeerLost, raise_failure

_WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Host:
    """How to start an engine process, its first message, and what it can do."""

    python: str | None  # the interpreter; None for this one
    setup: dict[str, Any]  # the first message: backend and its options, as JSON values
    environment: dict[str, str]  # added to the environment of the process that starts it
    log: Path
    vocab_size: int  # of the policy
    rest: Literal["sleep", "stay", "end"]  # what it does between generations
    slots: int | None = None  # of an engine that takes requests while it works on others
    gpus: int = 1  # GPUs that it uses, if there are any
    silence: float = SILENCE  # seconds without a message after which it counts as lost

    def start(self) -> Peer:
        """Start the process on this machine and return its peer.

        Raises UsageError if the interpreter cannot be run.
        """
        python = self.python or sys.executable
        try:
            return Peer(
                [python, "-P", str(_WORKER)],
                to_json(self.setup),
                silence=self.silence,
                environment=self.environment,
                log=self.log,
            )
        except OSError as error:
            raise cannot_be_run(python, error) from None


def cannot_be_run(python: str, error: OSError) -> UsageError:
    return UsageError(
        f"engine.python = {python!r} cannot be run ({error.strerror}); name an interpreter that "
        "has the engine installed"
    )


class Started(Protocol):
    """A started engine process: a Peer on this machine, or one under an actor."""

    def send(self, text: str) -> None:
        """See `Peer.send`."""
        ...

    def hear(self, patience: float = TICK) -> Any:
        """See `Peer.hear`."""
        ...

    def end(self) -> str:
        """See `Peer.end`."""
        ...


class RemoteEngine:
    """An engine whose process runs here or under an actor.

    A call of `generate` must end before the next one begins.
    """

    def __init__(
        self,
        host: Host,
        start: Callable[[], Started],
        notify: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        """Prepare an engine. `host` describes its process, and `start` starts it on first use.

        `notify` reports restarts. `check` is called while the process loads weights, and raises if
        the run is to stop.
        """
        self._host = host
        self._start = start
        self._notify = notify
        self._check = check
        self._process: Started | None = None
        self._loaded_key: str | None = None  # update and path of the weights that the process has
        self._update: int | None = None
        self._weights = ""
        self._restarts = 0  # processes lost since the last new weights
        self._tasks = 0  # that the process has got and not ended
        self._spent: dict[str, float] = {}  # seconds of the last refresh, by its parts
        self.streams = host.slots is not None
        self.exact = not self.streams

    def refresh(self, update: int, weights: Callable[[], str]) -> dict[str, float]:
        """See `Engine.refresh`.

        Raises UsageError if the process cannot be started, RunStopped if it is lost too often, and
        the failure that it reports (`peer.raise_failure`) if it cannot load the weights.
        """
        if update != self._update:
            self._update, self._weights = update, weights()
            self._restarts = 0
        self._spent = {}
        while True:
            try:
                self._loaded()
                return self._spent
            except PeerLost as lost:
                self._count(lost)

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        max_new_tokens: int,
        top_p: float = 1.0,
        more: More | None = None,
    ) -> Iterator[Decoded]:
        """See `Engine.generate`. Yields an empty `Decoded` while nothing finishes.

        If the process is lost, a new one generates the missing responses. An exact engine repeats
        all requests, so that its completions equal those that the lost process would have sent.
        Raises RunStopped if the process is lost too often or returns malformed completions.
        """
        assert self.streams or not more
        sampling = {"temperature": temperature, "max_new_tokens": max_new_tokens, "top_p": top_p}
        missing = dict(enumerate(requests))  # by their indices
        everything = dict(missing) if self.exact else missing
        count = len(missing)

        def come() -> dict[int, Request]:
            """Return the requests that have come since, by their indices."""
            nonlocal count, more
            added = more() if more else None
            more = None if added is None else more
            numbered = dict(enumerate(added or (), count))
            missing.update(numbered)
            count += len(numbered)
            return numbered

        try:
            while missing or more:
                if not missing:
                    come()
                    yield Decoded((), 0)
                    continue
                try:
                    process = self._loaded()
                    process.send(_task(everything, sampling))
                    self._tasks = 1
                    wait = (process, max_new_tokens, lambda: WAIT if more else TICK)
                    for decoded in self._decoded(*wait):
                        fresh = [(i, c) for i, c in decoded.completions if missing.pop(i, None)]
                        yield Decoded(fresh, decoded.slots)
                        if len(missing) < (self._host.slots or 0) and (added := come()):
                            self._tasks += 1
                            process.send(_task(added, sampling))
                    if missing:
                        raise PeerLost(f"left {len(missing)} requests unanswered")
                except PeerLost as lost:
                    self._count(lost)
        finally:
            if missing:  # end the process, whose remaining work is not needed
                self.close()

    def rest(self) -> None:
        """See `Engine.rest`. A process that is lost meanwhile is started at the next refresh."""
        if self._host.rest == "end":
            self.close()
        elif self._host.rest == "sleep" and self._process and self._loaded_key:
            try:
                self._process.send(to_json({"sleep": True}))
                if self._answer(self._process, "asleep"):
                    self._loaded_key = None
            except PeerLost as lost:
                self._count(lost)

    def close(self) -> None:
        """See `Engine.close`. The next use starts a new process."""
        if self._process is not None:
            self._process.end()
            self._process = self._loaded_key = None

    def _loaded(self) -> Started:
        """Return the process with the weights of the last refresh, starting it if necessary."""
        key = f"{self._update} {self._weights}"
        part = "load" if self._process else "start"
        began = time.monotonic()
        process = self._process = self._process or self._start()
        if self._loaded_key != key:
            process.send(to_json({"load": self._weights, "update": self._update}))
            wake = self._answer(process, "loaded")["wake"]
            self._loaded_key = key
            self._spent = {"wake": wake, part: time.monotonic() - began - wake}
        return process

    def _answer(self, process: Started, name: str) -> Any:
        """Return the process's answer of this name. Raises what `_messages` and `check` raise."""
        for message in self._messages(process):
            self._check()
            if message is not None and name in message:
                return message[name]

    @staticmethod
    def _messages(process: Started, patience: Callable[[], float] = lambda: TICK) -> Iterator[Any]:
        """Yield the messages of the process, and None after `patience` seconds without one.

        Raises PeerLost if the process is lost, and the failure that it reports if its work failed.
        """
        while True:
            if (message := process.hear(patience())) is not None:
                raise_failure(message)
            yield message

    def _decoded(
        self, process: Started, max_new_tokens: int, patience: Callable[[], float]
    ) -> Iterator[Decoded]:
        """Yield the finished responses of the current tasks until they end."""
        for message in self._messages(process, patience):
            if message and "end" in message:
                self._tasks -= message["end"]
                if not self._tasks:
                    return
            elif message and "completions" in message:
                completions = [self._completion(e, max_new_tokens) for e in message["completions"]]
                yield Decoded(completions, message["slots"])
            else:
                yield Decoded((), 0)

    def _completion(self, entry: dict[str, Any], max_new_tokens: int) -> tuple[int, Completion]:
        completion = checked(
            np.frombuffer(entry["ids"], np.int32),
            np.frombuffer(entry["logprobs"], np.float32),
            entry["reason"],
            longest=max_new_tokens,
            vocab_size=self._host.vocab_size,
            source=str(self._host.log),
        )
        return entry["index"], completion

    def _count(self, lost: PeerLost) -> None:
        """Record the loss of the process. Raises RunStopped if no restart is left."""
        self.close()
        self._restarts += 1
        text = f"the engine {lost}; its log is {self._host.log}"
        if self._restarts > RESTARTS:
            raise RunStopped(
                f"{text}. It was started {self._restarts} times; finished shards are kept"
            )
        self._notify(f"{text}. Restarting it ({self._restarts}/{RESTARTS})")


def _task(requests: Mapping[int, Request], sampling: dict[str, float]) -> str:
    """Return the message that requests responses: each prompt once, requests in order."""
    numbers: dict[bytes, int] = {}
    entries = []
    for index, request in requests.items():
        prompt = request.prompt_ids.astype(np.int32).tobytes()
        number = numbers.setdefault(prompt, len(numbers))
        entries.append([index, number, request.seed, request.max_new_tokens])
    return to_json({"generate": {"prompts": list(numbers), "requests": entries, **sampling}})


# The share of this machine, GPUs or CPU cores, that each engine process gets.


def visible_gpus() -> list[str]:
    """Return the names, as in CUDA_VISIBLE_DEVICES, of the GPUs that this process may use."""
    if not torch.cuda.is_available():
        return []
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names.split(",") if names else [str(i) for i in range(torch.cuda.device_count())]


def own_part(number: int, reserved: int) -> dict[str, str]:
    """Return the environment that gives process `number` of our own engine its GPU.

    The first `reserved` GPUs are used last. Processes may share a GPU. Without GPUs, the
    environment is empty.
    """
    gpus = visible_gpus()
    return {"CUDA_VISIBLE_DEVICES": gpus[(reserved + number) % len(gpus)]} if gpus else {}


def exclusive_part(number: int, processes: int, size: int, reserved: int) -> dict[str, str]:
    """Return the environment that gives vLLM's process `number` its `size` GPUs.

    The first `reserved` GPUs are skipped. Without GPUs, each process gets a share of the CPU
    cores. Raises UsageError if there are too few GPUs for all processes.
    """
    if gpus := visible_gpus():
        if reserved + processes * size > len(gpus):
            updates = f", plus {reserved} for the updates," if reserved else ""
            raise UsageError(
                f"the engines need {processes} x {size} GPUs{updates} but there are {len(gpus)}; "
                "lower --engine.processes or --engine.tensor_parallel"
            )
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[reserved + number * size :][:size])}
    if processes == 1:
        return {}
    usable = cores()
    share = max(1, len(usable) // processes)
    mine = usable[number * share % len(usable) :][:share]
    return {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, mine))}
