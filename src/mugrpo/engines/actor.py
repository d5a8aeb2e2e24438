"""A process of an engine under a Ray actor, on whatever machine Ray gives it.

The actor starts the process there and passes on what both sides say. Imports Ray when used.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

from mugrpo.config.backends import RayBackend
from mugrpo.disk.errors import UsageError
from mugrpo.engines.child import EngineLost, Host, LocalChild
from mugrpo.processes.cluster import connected, on_gpus

_TICK = 0.5  # seconds after which one that waits for a word is given its turn


class Relay:
    """The actor. A process that is lost, or cannot be started, is told when it is heard."""

    def __init__(self, host: Host, silence: float) -> None:
        self._host = host
        self._silence = silence
        self._child: LocalChild | None = None
        self._fault: dict[str, str] | None = None

    def send(self, text: str) -> None:
        try:
            self._child = self._child or LocalChild(self._host, self._silence)
            self._child.send(text)
        except EngineLost as lost:
            self._fault = {"lost": str(lost)}
        except UsageError as refused:
            self._fault = {"failed": "refused", "text": str(refused)}

    def hear(self) -> list[Any]:
        """What the process has said since; waits a moment for it."""
        found: list[Any] = []
        if self._fault or self._child is None:
            return [self._fault] if self._fault else found
        try:
            while (message := self._child.hear(0 if found else _TICK)) is not None:
                found.append(message)
        except EngineLost as lost:
            self._fault = {"lost": str(lost)}
            found.append(self._fault)
        return found


class RayChild:
    """See `Child`: a process elsewhere, which ends with its actor."""

    def __init__(self, host: Host, silence: float, options: RayBackend) -> None:
        self.weights: str | None = None
        self.waits = True  # until the actor has answered
        self._ray = connected(options)
        resources = {"num_cpus": options.engine_cpus}
        if on_gpus(options):
            resources["num_gpus"] = host.gpus
        self._actor = self._ray.remote(Relay).options(**resources).remote(host, silence)
        self._said: deque[Any] = deque()
        self._asked: Any = None

    def send(self, text: str) -> None:
        self._actor.send.remote(text)  # in their order; what goes wrong is heard

    def hear(self) -> Any:
        if not self._said:
            self._asked = self._asked or self._actor.hear.remote()
            done, _ = self._ray.wait([self._asked], timeout=_TICK)
            if not done:
                return None
            asked, self._asked = self._asked, None
            try:
                self._said.extend(self._ray.get(asked))
                self.waits = False
            except self._ray.exceptions.RayError as error:
                raise EngineLost(f"ended with its actor ({type(error).__name__})") from None
        message = self._said.popleft() if self._said else None
        if message is not None and "lost" in message:
            raise EngineLost(message["lost"])
        return message

    def end(self) -> str:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)
        return "its actor"
