"""What a person sees during a run: one screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from mugrpo.processes.shown import shown
from mugrpo.run.state import RunState

if TYPE_CHECKING:  # they import more, and only terminals need them
    from mugrpo.run.follower import Follower
    from mugrpo.run.screen import Screen

_PLAIN_INTERVAL = 10.0  # seconds between plain lines of one phase
_TELLING = 0.02  # share of a phase that tells how long the rest takes; the first rollouts are short
_FEW = 7  # rollouts that tell nothing, however large a share they are


class Progress:
    """A display of the current phase of work, and of sentences between phases.

    `begin` a phase, `advance` it, `end` it; `say` a sentence. A line is printed at the end of each
    phase. Meanwhile, a terminal has a screen, and elsewhere a line is printed every ten seconds.
    Times come from the monotonic clock.
    """

    def __init__(self, console: Console | None = None, *, shown: bool = True) -> None:
        self.console = console or Console(
            file=sys.stdout, highlight=False, soft_wrap=True, quiet=not shown
        )
        self.behavior_reward: float | None = None
        self.accuracy: float | None = None
        self._screen: Screen | None = None
        self._run: Follower | None = None
        self._heading, self._unit = "", ""
        self._total = self._done = self._before = self._tokens = 0
        self._began = self._printed = time.monotonic()

    @contextmanager
    def watching(self, run: Path) -> Iterator[None]:
        """Show the whole run, between its phases too, if this is a terminal."""
        if on_terminal(self.console):
            from mugrpo.run.follower import Follower

            self._run = Follower(run)
        self._show()
        try:
            yield
        finally:
            self._run = None
            self.stop()

    def begin(self, heading: str, unit: str, total: int, done: int = 0) -> None:
        """Start a phase of `total` units. `done` of them exist already."""
        self._heading, self._unit, self._total = heading, unit, total
        self._done = self._before = done
        self._tokens = 0
        self._began = self._printed = time.monotonic()
        self._show()

    def advance(self, units: int, tokens: int = 0) -> None:
        """Count `units` more as done, and the `tokens` that they took."""
        self._done += units
        self._tokens += tokens
        late = time.monotonic() - self._printed > _PLAIN_INTERVAL
        if not self._screen and self._done < self._total and late:
            self._print()

    def end(self) -> None:
        """Finish the phase and leave its last line on the screen."""
        if not self._run:
            self.stop()
        if self._total:
            self._print()
        self._total = 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let another phase begin and end in the block, then continue this one.

        This phase's clock stops during the block.
        """
        phase = (self._heading, self._unit, self._total)
        counts = (self._done, self._before, self._tokens)
        began, paused = self._began, time.monotonic()
        yield
        self._heading, self._unit, self._total = phase
        self._done, self._before, self._tokens = counts
        self._began = began + time.monotonic() - paused
        self._printed = time.monotonic()
        self._show()

    def stop(self) -> None:
        """Erase the screen, whether or not the phase has ended."""
        screen, self._screen = self._screen, None
        if screen:
            screen.stop()

    def say(self, sentence: str) -> None:
        """Print `sentence`. Characters that a terminal would obey are shown instead."""
        if screen := self._screen:
            screen.say(sentence)
        else:
            self.console.print(Text(shown(sentence)))

    def state(self) -> RunState:
        """Return the state of the run as its files tell it, and the phase as this process does."""
        state = self._run.state() if self._run else RunState(metrics=tuple(self._known()))
        if not self._total:  # a refresh, or between phases
            refreshing = "refresh" in state.phases
            return replace(state, phases=("refresh",)) if refreshing else state
        place, _, phase = self._heading.rpartition("  ")
        beside = [p for p in state.phases if phase == "optimize" or p == "checkpoint"]
        bars = state.bars
        if phase == "generate" and bars and bars[0].name == "rollouts":
            bars = (replace(bars[0], done=self._done, total=self._total), *bars[1:])
        phases = (phase, *beside)
        return replace(state, place=place, phases=phases, pace=self._pace(), bars=bars)

    def line(self) -> str:
        """Return the current phase in one line: count, tokens/s, time left, reward, accuracy.

        While too little is done to tell the time left, it has the time taken.
        """
        known = (f"{name} {value}" for name, value in self._known())
        return "  ".join([self._heading, self._pace(), *known])

    def _known(self) -> Iterator[tuple[str, str]]:
        if self.behavior_reward is not None:
            yield "behavior reward", f"{self.behavior_reward:.3f}"
        if self.accuracy is not None:
            yield "accuracy", f"{self.accuracy:.3f}"

    def _pace(self) -> str:
        seconds = time.monotonic() - self._began
        parts = [f"{self._done}/{self._total} {self._unit}"]
        if self._tokens and seconds > 0:
            parts.append(f"{self._tokens / seconds:,.0f} tokens/s")
        fresh, left = self._done - self._before, self._total - self._done
        few = _FEW if self._unit == "rollouts" else 1
        told = left and fresh > few and fresh >= _TELLING * (fresh + left)
        parts.append(f"{clock(seconds / fresh * left)} left" if told else clock(seconds))
        return "  ".join(parts)

    def _show(self) -> None:
        if not self._screen and on_terminal(self.console) and (self._run or self._total):
            from mugrpo.run.screen import Screen

            self._screen = Screen(self.state, self.console.file)

    def _print(self) -> None:
        self._printed = time.monotonic()
        self.say(self.line())


def on_terminal(console: Console) -> bool:
    """Return whether a screen can be redrawn there. Continuous integration is no terminal."""
    return (
        console.file.isatty()
        and console.is_terminal
        and not (console.is_dumb_terminal or console.quiet or os.environ.get("CI"))
    )


def clock(seconds: float) -> str:
    """Return seconds as a clock shows them: 125 is "2:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
