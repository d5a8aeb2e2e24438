"""An engine in a process of its own: fed, watched, and started again where it dies.

What the process says of a request is looked at before it is believed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.engines import EngineOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Completion, Decoded, Request
from mugrpo.engines.child import Child, EngineLost, Host
from mugrpo.processes.messages import to_json


class RemoteEngine:
    """See `Engine`. Another generation can begin only when the last one has ended."""

    def __init__(
        self,
        host: Host,
        start: Callable[[], Child],
        options: EngineOptions,
        notify: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        """`start` starts a process of `host`. `check` is called while it loads: it raises where
        the run is to stop."""
        self._host = host
        self._start = start
        self._options = options
        self._notify = notify
        self._check = check
        self._child: Child | None = None
        self._update: int | None = None
        self._weights = ""
        self._restarts = 0  # since the refresh

    @property
    def gpus(self) -> int:
        """GPUs that its process computes on, where there are any."""
        return self._host.gpus

    def refresh(self, update: int, weights: Callable[[], str]) -> None:
        """See `Engine.refresh`. Raises RunStopped where the process does not come up."""
        if update != self._update:
            self._update, self._weights = update, weights()
            self._restarts = 0
        while True:
            try:
                self._loaded()
                return
            except EngineLost as lost:
                self._count(lost)

    def generate(
        self, requests: Sequence[Request], *, temperature: float, max_new_tokens: int
    ) -> Iterator[Decoded]:
        """See `Engine.generate`; hands over nothing, but often, while nothing is finished.

        Where the process is lost, another one goes on with what is missing; one that is exact is
        asked for everything again, so that it makes of it what the first one would have.
        Raises RunStopped where it is lost too often, and where it contradicts itself.
        """
        missing = set(range(len(requests)))
        try:
            while missing:
                try:
                    child = self._loaded()
                    asked = range(len(requests)) if self._host.exact else sorted(missing)
                    task = _task([(i, requests[i]) for i in asked], temperature, max_new_tokens)
                    child.send(task)
                    for decoded in self._decoded(child, max_new_tokens):
                        fresh = [(i, made) for i, made in decoded.completions if i in missing]
                        missing -= {i for i, _ in fresh}
                        yield Decoded(fresh, decoded.slots)
                    if missing:
                        raise EngineLost(f"left {len(missing)} requests without an answer")
                except EngineLost as lost:
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
        if self._child is not None:
            self._child.end()
            self._child = None

    def _loaded(self) -> Child:
        """The process with the weights of the last refresh, started where there is none."""
        child = self._child
        if child is not None and child.weights not in (None, self._key) and not self._host.reloads:
            self.close()
            child = None
        if child is None:
            child = self._child = self._start()
        if child.weights != self._key:
            child.send(to_json({"load": self._weights, "update": self._update}))
            for message in self._messages(child):
                self._check()
                if message is not None and "loaded" in message:
                    break
            child.weights = self._key
        return child

    @property
    def _key(self) -> str:
        return f"{self._update} {self._weights}"

    def _messages(self, child: Child) -> Iterator[Any]:
        """What the process says, and None every now and then without a word.

        Raises EngineLost where it ended or is silent for too long, and what it says has failed.
        """
        heard = time.monotonic()
        while True:
            if (message := child.hear()) is not None:
                heard = time.monotonic()
                _raise_failure(message)
                yield message
            elif child.waits:
                heard = time.monotonic()
                yield None
            elif time.monotonic() - heard > self._options.silence:
                raise EngineLost(f"has said nothing for {self._options.silence:g} s")
            else:
                yield None

    def _decoded(self, child: Child, max_new_tokens: int) -> Iterator[Decoded]:
        """What is finished of the task under way, until its end."""
        for message in self._messages(child):
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

    def _count(self, lost: EngineLost) -> None:
        """Note that the process is lost; raises RunStopped where it may not be started again."""
        self.close()
        self._restarts += 1
        text = f"the engine {lost}; its log is {self._host.log}"
        if self._restarts > self._options.restarts:
            raise RunStopped(
                f"{text}. It was started {self._restarts} times (--engine.restarts "
                f"{self._options.restarts}); finished shards are kept"
            )
        self._notify(f"{text}. It is started again ({self._restarts}/{self._options.restarts})")


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


def _raise_failure(message: dict[str, Any]) -> None:
    """What stopped the process's work where that is no crash: memory, the model, its options."""
    kinds = {"memory": MemoryError, "stopped": RunStopped, "refused": UsageError}
    if (kind := message.get("failed")) is not None:
        raise kinds[kind](message["text"])
