"""An engine process under a Ray actor, on whatever machine Ray chooses.

The actor starts the process on its machine and relays messages both ways.
"""

import time
from collections import deque
from contextlib import suppress
from typing import Any

from mugrpo.config.engines import SILENCE
from mugrpo.disk.errors import UsageError
from mugrpo.engines.process import EngineHost
from mugrpo.processes.peer import TICK, Peer, PeerLost


class Relay:
    """The actor: it starts the engine process and relays its messages.

    `hear` reports a process that is lost or cannot be started.
    """

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._peer: Peer | None = None
        self._fault: dict[str, str] | None = None

    def send(self, text: str) -> None:
        try:
            self._peer = self._peer or self._host.start()
            self._peer.send(text)
        except PeerLost as error:
            self._fault = {"lost": str(error)}
        except UsageError as error:
            self._fault = {"failed": "refused", "text": str(error)}

    def hear(self) -> list[Any]:
        """Return the messages since the last call, waiting up to `TICK` seconds for the first."""
        messages: list[Any] = []
        if self._fault or self._peer is None:
            return [self._fault] if self._fault else messages
        try:
            while (message := self._peer.hear(0 if messages else TICK)) is not None:
                messages.append(message)
        except PeerLost as error:
            self._fault = {"lost": str(error)}
            messages.append(self._fault)
        return messages


class ActorPeer:
    """A peer on a machine that Ray chooses. It ends with its actor.

    Its silence counts from the actor's first answer, because placing the actor may take any time.
    """

    def __init__(self, ray: Any, host: EngineHost, gpus: int) -> None:
        self._ray = ray
        self._actor = ray.remote(Relay).options(num_cpus=1, num_gpus=gpus).remote(host)
        self._answered: float | None = None  # when the actor last answered
        self._inbox: deque[Any] = deque()
        self._pending: Any = None

    def send(self, text: str) -> None:
        """See `Peer.send`. Failures are reported by `hear`."""
        self._actor.send.remote(text)  # an actor runs calls in order

    def hear(self, patience: float = TICK) -> Any:
        """See `Peer.hear`."""
        if not self._inbox:
            self._pending = self._pending or self._actor.hear.remote()
            ready, _ = self._ray.wait([self._pending], timeout=patience)
            if not ready:
                if self._answered and time.monotonic() - self._answered > SILENCE:
                    raise PeerLost(f"has sent nothing for {SILENCE:g} s")
                return None
            answer, self._pending = self._pending, None
            try:
                self._inbox.extend(self._ray.get(answer))
            except self._ray.exceptions.RayError as error:
                raise PeerLost(f"ended with its actor ({type(error).__name__})") from None
            self._answered = time.monotonic()
        message = self._inbox.popleft() if self._inbox else None
        if message is not None and "lost" in message:
            raise PeerLost(message["lost"])
        return message

    def end(self) -> str:
        """See `Peer.end`."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)
        return "its actor"
