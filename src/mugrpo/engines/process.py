"""An engine in a process of its own: fed, watched, and started again if it dies.

It runs `worker.py`, under an interpreter that may have another environment. What it says of a
request is checked before it is believed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.engines import EngineOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Completion, Decoded, Request
from mugrpo.processes.messages import to_json
from mugrpo.processes.peer import Peer, PeerLost, raise_failure

_WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Host:
    """How a process of the engine is started, and what it is told first."""

    python: str | None  # the interpreter; None: the one that starts it
    setup: dict[str, Any]  # backend and its options, as JSON has them
    environment: dict[str, str]  # besides that of what starts it
    log: Path
    vocab_size: int  # of the policy
    reloads: bool  # takes other weights while it runs
    exact: bool  # the same requests together give the same completions to the bit
    silence: float  # seconds without a word after which it is given up
    gpus: int = 1  # that it computes on, if there are any

    def start(self) -> Peer:
        """Start it on this machine. Raise UsageError if the interpreter cannot be run."""
        python = self.python or sys.executable
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            return Peer(
                [python, "-P", str(_WORKER)],
                to_json(self.setup),
                silence=self.silence,
                environment=self.environment,
                log=self.log,
            )
        except OSError as error:
            raise UsageError(
                f"engine.python = {python!r} cannot be run ({error.strerror}); name an interpreter "
                "that has the engine"
            ) from None


class Started(Protocol):
    """A process of an engine: a Peer here, or one under an actor."""

    def send(self, text: str) -> None:
        """See `Peer.send`."""
        ...

    def hear(self) -> Any:
        """See `Peer.hear`."""
        ...

    def end(self) -> str:
        """See `Peer.end`."""
        ...


class RemoteEngine:
    """See `Engine`. Another generation can begin only when the last one has ended."""

    def __init__(
        self,
        host: Host,
        start: Callable[[], Started],
        options: EngineOptions,
        notify: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        """`start` starts a process of `host`. `check` is called while it loads, and raises if the
        run is to stop."""
        self._host = host
        self._start = start
        self._restarts_allowed = options.restarts
        self._notify = notify
        self._check = check
        self._process: Started | None = None
        self._loaded_key: str | None = None  # of the weights that the process has
        self._update: int | None = None
        self._weights = ""
        self._restarts = 0  # since the refresh

    @property
    def gpus(self) -> int:
        """GPUs that its process computes on, if there are any."""
        return self._host.gpus

    def refresh(self, update: int, weights: Callable[[], str]) -> None:
        """See `Engine.refresh`. Raise RunStopped if the process does not come up."""
        if update != self._update:
            self._update, self._weights = update, weights()
            self._restarts = 0
        while True:
            try:
                self._loaded()
                return
            except PeerLost as lost:
                self._count(lost)

    def generate(
        self, requests: Sequence[Request], *, temperature: float, max_new_tokens: int
    ) -> Iterator[Decoded]:
        """See `Engine.generate`; hands over nothing, but often, while nothing is finished.

        If the process is lost, another one goes on with what is missing; one that is exact is
        asked for everything again, so that it makes of it what the first one would have.
        Raise RunStopped if it is lost too often, or contradicts itself.
        """
        missing = set(range(len(requests)))
        try:
            while missing:
                try:
                    process = self._loaded()
                    asked = range(len(requests)) if self._host.exact else sorted(missing)
                    task = _task([(i, requests[i]) for i in asked], temperature, max_new_tokens)
                    process.send(task)
                    for decoded in self._decoded(process, max_new_tokens):
                        fresh = [(i, made) for i, made in decoded.completions if i in missing]
                        missing -= {i for i, _ in fresh}
                        yield Decoded(fresh, decoded.slots)
                    if missing:
                        raise PeerLost(f"left {len(missing)} requests without an answer")
                except PeerLost as lost:
                    self._count(lost)
        finally:
            if missing:  # what it is busy with is not wanted any more
                self.close()

    def rest(self) -> None:
        """See `Engine.rest`: ends a process that could not take the next weights anyway."""
        if not self._host.reloads:
            self.close()

    def close(self) -> None:
        """See `Engine.close`; the next use starts it again."""
        if self._process is not None:
            self._process.end()
            self._process = self._loaded_key = None

    def _loaded(self) -> Started:
        """Return the process with the weights of the last refresh; start it if there is none."""
        key = f"{self._update} {self._weights}"
        if self._loaded_key not in (None, key) and not self._host.reloads:
            self.close()
        process = self._process = self._process or self._start()
        if self._loaded_key != key:
            process.send(to_json({"load": self._weights, "update": self._update}))
            for message in self._messages(process):
                self._check()
                if message is not None and "loaded" in message:
                    break
            self._loaded_key = key
        return process

    @staticmethod
    def _messages(process: Started) -> Iterator[Any]:
        """Yield what the process says, and None every now and then without a word.

        Raise PeerLost if it is lost, and what it says has failed.
        """
        while True:
            if (message := process.hear()) is not None:
                raise_failure(message)
            yield message

    def _decoded(self, process: Started, max_new_tokens: int) -> Iterator[Decoded]:
        """Yield what is finished of the task under way, until its end."""
        for message in self._messages(process):
            if message is None:
                yield Decoded((), 0)
            elif "end" in message:
                return
            elif "completions" in message:
                made = [self._completion(e, max_new_tokens) for e in message["completions"]]
                yield Decoded(made, message["slots"])

    def _completion(self, entry: dict[str, Any], max_new_tokens: int) -> tuple[int, Completion]:
        made = checked(
            np.frombuffer(entry["ids"], np.int32),
            np.frombuffer(entry["logprobs"], np.float32),
            entry["reason"],
            longest=max_new_tokens,
            vocab_size=self._host.vocab_size,
            source=str(self._host.log),
        )
        return entry["index"], made

    def _count(self, lost: PeerLost) -> None:
        """Note that the process is lost. Raise RunStopped if it may not be started again."""
        self.close()
        self._restarts += 1
        text = f"the engine {lost}; its log is {self._host.log}"
        if self._restarts > self._restarts_allowed:
            raise RunStopped(
                f"{text}. It was started {self._restarts} times (--engine.restarts "
                f"{self._restarts_allowed}); finished shards are kept"
            )
        self._notify(f"{text}. It is started again ({self._restarts}/{self._restarts_allowed})")


def checked(
    ids: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    reason: str,
    *,
    longest: int,
    vocab_size: int,
    source: str,
) -> Completion:
    """A response from elsewhere, once it holds what the shards need; RunStopped where not."""
    fault = None
    if not 0 < len(ids) <= longest or len(ids) != len(logprobs):
        fault = f"{len(ids)} ids with {len(logprobs)} logprobs"
    elif ids.min() < 0 or ids.max() >= vocab_size:
        fault = f"token ids {ids.min()} to {ids.max()} of a vocabulary of {vocab_size}"
    elif not np.isfinite(logprobs).all():
        fault = "logprobs that are not finite"
    elif reason not in set(FinishReason):
        fault = f"a response that ended by {reason!r}"
    if fault:
        raise RunStopped(f"the engine gave {fault}; see {source}")
    return Completion(ids, logprobs, FinishReason(reason))


def _task(requests: Sequence[tuple[int, Request]], temperature: float, longest: int) -> str:
    """The message that asks for responses: each prompt once, requests in their order."""
    numbers: dict[bytes, int] = {}
    asked = []
    for index, request in requests:
        prompt = request.prompt_ids.astype(np.int32).tobytes()
        asked.append([index, numbers.setdefault(prompt, len(numbers)), request.seed])
    task = {"temperature": temperature, "max_new_tokens": longest}
    return to_json({"generate": {"prompts": list(numbers), "requests": asked, **task}})
