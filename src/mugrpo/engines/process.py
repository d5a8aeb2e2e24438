"""An engine in its own process: the run sends it requests, and restarts it if it dies.

The process runs `worker.py`, possibly under an interpreter with a different environment.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from mugrpo.config.engines import RESTARTS, SILENCE
from mugrpo.config.training import DistributedOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.engines.base import WAIT, Arrivals, Completion, Decoded, Engine, Request, checked
from mugrpo.processes.messages import to_json
from mugrpo.processes.peer import TICK, Peer, PeerLost, raise_failure

_WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class EngineHost:
    """How to start an engine process, its first message, and what it can do."""

    python: str | None  # the interpreter; None for this one
    setup: dict[str, Any]  # the first message: backend and its options, as JSON values
    environment: dict[str, str]  # added to the environment of the process that starts it
    log: Path
    vocab_size: int  # of the policy
    rest: Literal["sleep", "stay", "end"]  # what it does between generations
    slots: int = 0  # of an engine that takes requests while it works on others
    gpus: int = 1  # GPUs that it uses, if there are any

    def start(self) -> Peer:
        """Start the process on this machine and return its peer.

        Raises UsageError if the interpreter cannot be run.
        """
        python = self.python or sys.executable
        try:
            return Peer(
                [python, str(_WORKER)],
                to_json(self.setup),
                silence=SILENCE,
                environment=self.environment,
                log=self.log,
            )
        except OSError as error:
            raise not_run(python, error) from None


def not_run(python: str, error: OSError) -> UsageError:
    """Return the error that says why an interpreter did not start."""
    return UsageError(
        f"engine.python = {python!r} cannot be run ({error.strerror}); name an interpreter "
        "that has the engine installed"
    )


class RemoteEngine(Engine):
    """An engine whose process runs here or under an actor.

    A call of `generate` must end before the next one begins.
    """

    def __init__(
        self,
        host: EngineHost,
        start: Callable[[], Peer],
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
        self._process: Peer | None = None
        self._loaded_key: str | None = None  # update and path of the weights that the process has
        self._update: int | None = None
        self._weights = ""
        self._restarts = 0  # processes lost since the last new weights
        self.exact = not host.slots

    def refresh(self, update: int, weights: Callable[[], str]) -> float:
        """See `Engine.refresh`.

        Raises UsageError if the process cannot be started, RunStopped if it is lost too often, and
        the failure that it reports (`peer.raise_failure`) if it cannot load the weights.
        """
        if update != self._update:
            self._update, self._weights = update, weights()
            self._restarts = 0
        began = time.monotonic()
        while True:
            try:
                self._loaded()
                return time.monotonic() - began
            except PeerLost as lost:
                self._count(lost)

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        max_new_tokens: int,
        top_p: float = 1.0,
        more: Iterable[Sequence[Request]] = (),
    ) -> Iterator[Decoded]:
        """See `Engine.generate`. Yields an empty `Decoded` while nothing finishes.

        If the process is lost, a new one generates the missing responses. An exact engine repeats
        all requests, so that its completions equal those that the lost process would have sent.
        Raises RunStopped if the process is lost too often or returns malformed completions.
        """
        sampling = {"temperature": temperature, "max_new_tokens": max_new_tokens, "top_p": top_p}
        arrivals, missing = Arrivals(requests, more), dict[int, Request]()
        idle = True  # whether the process has answered all that was sent
        try:
            while missing or arrivals.open:
                if not missing:
                    batch = arrivals.take()
                    missing = dict(batch)
                    yield Decoded((), 0)
                    continue
                idle = False
                try:
                    process = self._loaded()
                    # Rounding depends on what is decoded beside a response.
                    process.send(_task(batch if self.exact else missing, sampling))
                    while missing:
                        decoded = self._decoded(process, max_new_tokens, arrivals.open)
                        fresh = [(i, c) for i, c in decoded.completions if missing.pop(i, None)]
                        yield Decoded(fresh, decoded.slots)
                        room = arrivals.open and len(missing) < self._host.slots
                        if room and (added := arrivals.take()):
                            missing.update(added)
                            process.send(_task(added, sampling))
                    self._answer(process, "end")
                    idle = True
                except PeerLost as lost:
                    self._count(lost)
        finally:
            # Its other work is not needed; before "end", it would take a `load` for requests.
            if not idle:
                self.close()

    def sleep(self) -> None:
        """See `Engine.sleep`. A process that is lost meanwhile is started at the next refresh."""
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

    def _loaded(self) -> Peer:
        """Return the process with the weights of the last refresh, starting it if necessary."""
        key = f"{self._update} {self._weights}"
        process = self._process = self._process or self._start()
        if self._loaded_key != key:
            process.send(to_json({"load": self._weights, "update": self._update}))
            self._answer(process, "loaded")
            self._loaded_key = key
        return process

    def _answer(self, process: Peer, name: str) -> Any:
        """Return the process's answer of this name. Raises what `_heard` and `check` raise."""
        while True:
            message = self._heard(process)
            self._check()
            if name in message:
                return message[name]

    @staticmethod
    def _heard(process: Peer, patience: float = TICK) -> dict[str, Any]:
        """Return the process's next message, or {} after `patience` seconds without one.

        Raises PeerLost if the process is lost, and the failure that it reports if its work failed.
        """
        message: dict[str, Any] = process.hear(patience) or {}
        raise_failure(message)
        return message

    def _decoded(self, process: Peer, max_new_tokens: int, hurried: bool) -> Decoded:
        """Return what the process has finished. Wait less long if it is `hurried`."""
        message = self._heard(process, WAIT if hurried else TICK)
        entries = message.get("completions", ())
        completions = [self._completion(entry, max_new_tokens) for entry in entries]
        return Decoded(completions, message.get("slots", 0))

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


def require_gpus(options: DistributedOptions) -> None:
    """Raise UsageError if this machine has GPUs, but not one for each of its ranks."""
    if 0 < (gpus := len(visible_gpus())) < options.processes:
        raise UsageError(
            f"distributed.processes = {options.processes} needs as many GPUs, but this process "
            f"sees {gpus}; set --distributed.processes {gpus}, or name more of them in "
            "CUDA_VISIBLE_DEVICES"
        )


def visible_gpus() -> list[str]:
    """Return the names, as in CUDA_VISIBLE_DEVICES, of the GPUs that this process may use."""
    if not torch.cuda.is_available():
        return []
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names.split(",") if names else [str(i) for i in range(torch.cuda.device_count())]
