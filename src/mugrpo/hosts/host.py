"""Who computes for a run: what phases ask of a host, whether it is one process or many."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.records import Rollout
from mugrpo.engines.base import Engine
from mugrpo.rollouts.sampler import Dialogue
from mugrpo.rollouts.schedule import Draw
from mugrpo.run.stage import Stage


@dataclass(frozen=True)
class Refreshed:
    """Engines with the policy's weights, which the canary has checked if it had to."""

    engines: Sequence[Engine]
    dialogues: Sequence[Dialogue | None]  # what lets the rollouts of each have turns
    canary_gap: float | None  # None: only the stage's first update compares
    spent: dict[str, float]  # seconds by the parts of the refresh

    @property
    def notes(self) -> dict[str, Any]:
        """Return what the refresh's metrics have of it."""
        seconds = sum(self.spent.values())
        return {
            "canary_gap": self.canary_gap,
            "refresh_seconds": seconds,
            "refresh_parts": self.spent,
        }


class Generation(Protocol):
    """Generation beside updates, in this process or in others."""

    @property
    def uses_engines(self) -> bool:
        """Whether it needs this process's engines until it is finished."""
        ...

    def running(self) -> bool:
        """Return whether it is unfinished. Raises the error that ended it, if any."""
        ...

    def failed(self) -> bool:
        """Return whether it has ended with an error."""
        ...

    def wait(self) -> None:
        """Wait until it is finished. Raises the error that ended it, if any."""


def needs_engines(generation: Generation | None) -> bool:
    """Return whether `generation` still needs this process's engines. See `Generation.running`."""
    return generation is not None and generation.uses_engines and generation.running()


class Host(Protocol):
    """Computes what a run's phases ask for. Call `close` at the end, also after an error."""

    def load(self) -> None:
        """Load the model, beside the engines if these have memory of their own."""

    def engines(self, update: int, groups: Sequence[Draw], stage: str) -> Refreshed:
        """Return engines that sample from the policy after `update` updates.

        The canary samples responses to the first of `groups`, seeded as those of `stage`. Raises
        RunStopped if it rejects the engines.
        """
        ...

    def logprobs(self, update: int, rollouts: Sequence[Rollout]) -> list[NDArray[np.float32]]:
        """Return the logprobs [T] of each rollout's response after `update` updates."""
        ...

    def update(self, stage: Stage, until: int, generation: Generation | None = None) -> None:
        """Make the stage's missing updates up to `until`.

        With `generation`, its shards may still be arriving: an update waits for those it reads.
        """

    def save(self, *, temporary: bool = False) -> None:
        """Save a checkpoint of all updates so far. The next one removes a `temporary` one."""

    def sleep(self) -> None:
        """Let the engines leave the machine to the updates."""

    def close(self) -> None:
        """End engines and ranks, and release what they hold."""
