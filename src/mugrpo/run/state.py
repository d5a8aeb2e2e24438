"""The state of a run at one moment, as its screen shows it."""

from __future__ import annotations

from dataclasses import dataclass

PHASES = ("refresh", "generate", "score", "optimize", "checkpoint", "evaluate")


@dataclass(frozen=True)
class Bar:
    """Work that is counted: `done` of `total` units."""

    name: str
    done: int
    total: int


@dataclass(frozen=True)
class Sign:
    """A warning sign: a value, and the limit above which (or `below` which) it warns."""

    name: str
    value: float
    limit: float
    below: bool = False

    @property
    def warns(self) -> bool:
        return self.value < self.limit if self.below else self.value > self.limit


@dataclass(frozen=True)
class RunState:
    """A run at one moment. What is unknown is empty or None."""

    title: str = ""
    status: str = ""  # who works on it, or how it ended
    running: bool = True
    place: str = ""  # the stage
    phases: tuple[str, ...] = ()  # at work now
    pace: str = ""  # of the phase, if it is known
    bars: tuple[Bar, ...] = ()
    used: float | None = None  # seconds
    left: float | None = None  # seconds
    metrics: tuple[tuple[str, str], ...] = ()
    signs: tuple[Sign, ...] = ()
    notes: tuple[str, ...] = ()  # what cannot be read
