"""How an engine process is started, and what its engine can do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from mugrpo.disk.errors import UsageError
from mugrpo.processes.messages import to_json
from mugrpo.processes.peer import TICK, Peer

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
    exact: bool  # whether the same batch of requests gives bit-identical completions
    silence: float  # seconds without a message after which it counts as lost
    slots: int | None = None  # of an engine that takes requests while it works on others
    gpus: int = 1  # GPUs that it uses, if there are any

    def start(self) -> Peer:
        """Start the process on this machine and return its peer.

        Raises UsageError if the interpreter cannot be run.
        """
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
