"""What a person sees during a run: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mugrpo.processes.messages import visible

_PLAIN_INTERVAL = 10.0  # seconds between plain lines of one phase
_TELLING = 0.02  # share of a phase that tells how long the rest takes; the first rollouts are short
_FEW = 7  # rollouts that tell nothing, however large a share they are


class Progress:
    """A display of the current phase of work, and of sentences between phases.

    `begin` a phase, `advance` it, `end` it; `say` a sentence. On a terminal the current line is
    redrawn in place. Elsewhere a line is printed every ten seconds and at the end of each phase.
    Times come from the monotonic clock.
    """

    def __init__(self, console: Console | None = None, *, shown: bool = True) -> None:
        self.console = console or Console(
            file=sys.stdout, highlight=False, soft_wrap=True, quiet=not shown
        )
        self.behavior_reward: float | None = None
        self.accuracy: float | None = None
        self._live: Live | None = None
        self._heading, self._unit = "", ""
        self._total = self._done = self._before = self._tokens = 0
        self._began = self._printed = time.monotonic()

    def begin(self, heading: str, unit: str, total: int, done: int = 0) -> None:
        """Start a phase of `total` units. `done` of them exist already."""
        self._heading, self._unit, self._total = heading, unit, total
        self._done = self._before = done
        self._tokens = 0
        self._began = self._printed = time.monotonic()
        self._show_live()

    def advance(self, units: int, tokens: int = 0) -> None:
        """Count `units` more as done, and the `tokens` that they took."""
        self._done += units
        self._tokens += tokens
        if self._live:
            self._live.update(Text(self.line()))
        elif self._done < self._total and time.monotonic() - self._printed > _PLAIN_INTERVAL:
            self._print()

    def end(self) -> None:
        """Finish the phase and leave its last line on the screen."""
        if self._live:
            self._live.stop()
            self._live = None
        if self._total:
            self._print()
        self._total = 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let another phase begin and end in the block, then continue this one.

        This phase's clock stops during the block.
        """
        self.stop()
        phase = (self._heading, self._unit, self._total, self._done, self._before, self._tokens)
        began, paused = self._began, time.monotonic()
        yield
        (self._heading, self._unit, self._total, self._done, self._before, self._tokens) = phase
        self._began = began + time.monotonic() - paused
        self._printed = time.monotonic()
        self._show_live()

    def stop(self) -> None:
        """Erase the live line, whether or not the phase has ended."""
        if self._live:
            self._live.stop()
            self._live = None

    def say(self, sentence: str) -> None:
        """Print `sentence`. Characters that a terminal would obey are shown instead."""
        self.console.print(Text(visible(sentence)))

    def line(self) -> str:
        """Return the current phase in one line: count, tokens/s, time left, reward, accuracy.

        While too little is done to tell the time left, it has the time taken.
        """
        seconds = time.monotonic() - self._began
        parts = [self._heading, f"{self._done}/{self._total} {self._unit}"]
        if self._tokens and seconds > 0:
            parts.append(f"{self._tokens / seconds:,.0f} tokens/s")
        fresh, left = self._done - self._before, self._total - self._done
        few = _FEW if self._unit == "rollouts" else 1
        if left and fresh > few and fresh >= _TELLING * (fresh + left):
            parts.append(f"{clock(seconds / fresh * left)} left")
        else:
            parts.append(clock(seconds))
        if self.behavior_reward is not None:
            parts.append(f"behavior reward {self.behavior_reward:.3f}")
        if self.accuracy is not None:
            parts.append(f"accuracy {self.accuracy:.3f}")
        return "  ".join(parts)

    def _show_live(self) -> None:
        if self.console.is_terminal and self._total:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()

    def _print(self) -> None:
        self._printed = time.monotonic()
        self.say(self.line())


def clock(seconds: float) -> str:
    """Return seconds as a clock shows them: 125 is "2:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
