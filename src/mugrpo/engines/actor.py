"""A process of an engine under a Ray actor, on whatever machine Ray gives it.

The actor starts the process there and passes on what both sides say. Imports Ray when used.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import Any

from mugrpo.config.backends import RayBackend
from mugrpo.disk.errors import UsageError
from mugrpo.engines.process import Host
from mugrpo.processes.cluster import connected, on_gpus
from mugrpo.processes.peer import TICK, Peer, PeerLost


class Relay:
    """The actor. If the process is lost, or cannot be started, `hear` says so."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._peer: Peer | None = None
        self._fault: dict[str, str] | None = None

    def send(self, text: str) -> None:
        try:
            self._peer = self._peer or self._host.start()
            self._peer.send(text)
        except PeerLost as lost:
            self._fault = {"lost": str(lost)}
        except UsageError as refused:
            self._fault = {"failed": "refused", "text": str(refused)}

    def hear(self) -> list[Any]:
        """Return what the process has said since; wait a moment for it."""
        found: list[Any] = []
        if self._fault or self._peer is None:
            return [self._fault] if self._fault else found
        try:
            while (message := self._peer.hear(0 if found else TICK)) is not None:
                found.append(message)
        except PeerLost as lost:
            self._fault = {"lost": str(lost)}
            found.append(self._fault)
        return found


class ActorPeer:
    """A peer elsewhere, which ends with its actor. Before that has a machine, nothing is due."""

    def __init__(self, host: Host, options: RayBackend) -> None:
        self._ray = connected(options)
        resources = {"num_cpus": options.engine_cpus}
        if on_gpus(options):
            resources["num_gpus"] = host.gpus
        self._actor = self._ray.remote(Relay).options(**resources).remote(host)
        self._silence = host.silence
        self._answered: float | None = None  # when the actor last did
        self._said: deque[Any] = deque()
        self._asked: Any = None

    def send(self, text: str) -> None:
        """See `Peer.send`. What goes wrong is heard."""
        self._actor.send.remote(text)  # in their order

    def hear(self) -> Any:
        """See `Peer.hear`."""
        if not self._said:
            self._asked = self._asked or self._actor.hear.remote()
            done, _ = self._ray.wait([self._asked], timeout=TICK)
            if not done:
                if self._answered and time.monotonic() - self._answered > self._silence:
                    raise PeerLost(f"has said nothing for {self._silence:g} s")
                return None
            asked, self._asked = self._asked, None
            try:
                self._said.extend(self._ray.get(asked))
            except self._ray.exceptions.RayError as error:
                raise PeerLost(f"ended with its actor ({type(error).__name__})") from None
            self._answered = time.monotonic()
        message = self._said.popleft() if self._said else None
        if message is not None and "lost" in message:
            raise PeerLost(message["lost"])
        return message

    def end(self) -> str:
        """See `Peer.end`."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)
        return "its actor"
