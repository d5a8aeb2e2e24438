"""What a person sees during a run: a page that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mugrpo.processes.messages import visible

if TYPE_CHECKING:  # it imports more, and only terminals need it
    from mugrpo.run.follower import Follower

_PLAIN_INTERVAL = 10.0  # seconds between plain lines of one phase
_TELLING = 0.02  # share of a phase that tells how long the rest takes; the first rollouts are short
_FEW = 7  # rollouts that tell nothing, however large a share they are


class Progress:
    """A display of the current phase of work, and of sentences between phases.

    `begin` a phase, `advance` it, `end` it; `say` a sentence. A line is printed at the end of each
    phase. Meanwhile, a terminal has a page, and elsewhere a line is printed every ten seconds.
    Times come from the monotonic clock.
    """

    def __init__(self, console: Console | None = None, *, shown: bool = True) -> None:
        self.console = console or Console(
            file=sys.stdout, highlight=False, soft_wrap=True, quiet=not shown
        )
        self.behavior_reward: float | None = None
        self.accuracy: float | None = None
        self._live: Live | None = None
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
        if not self._live and self._done < self._total and late:
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
        """Erase the page, whether or not the phase has ended."""
        live, self._live = self._live, None
        if live:
            live.stop()

    def say(self, sentence: str) -> None:
        """Print `sentence`. Characters that a terminal would obey are shown instead."""
        self.console.print(Text(visible(sentence)))

    def line(self) -> str:
        """Return the current phase in one line: count, tokens/s, time left, reward, accuracy.

        While too little is done to tell the time left, it has the time taken.
        """
        parts = [self._heading, self._pace()]
        if self.behavior_reward is not None:
            parts.append(f"behavior reward {self.behavior_reward:.3f}")
        if self.accuracy is not None:
            parts.append(f"accuracy {self.accuracy:.3f}")
        return "  ".join(parts)

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
        if not self._live and on_terminal(self.console) and (self._run or self._total):
            self._live = live_page(self._page, self.console)

    def _page(self) -> RenderableType:
        from mugrpo.run.follower import Bar, draw, drawn_bar

        parts: list[RenderableType] = []
        if self._total:
            bar = Bar("", self._done, self._total)
            parts += [Text(visible(self.line()), overflow="fold"), drawn_bar(bar)]
        if self._run:
            parts.append(draw(self._run.state()))
        return Group(*parts)

    def _print(self) -> None:
        self._printed = time.monotonic()
        self.say(self.line())


def live_page(page: Callable[[], RenderableType], console: Console) -> Live:
    """Return a started display of what `page` returns, redrawn in place until it is stopped."""

    def drawn() -> RenderableType:
        rows = Table.grid(expand=True)  # its cells wrap, whatever the console's soft_wrap
        try:
            rows.add_row(page())
        except Exception as error:  # a fault here must not end the training
            rows.add_row(Text(visible(f"the run's state cannot be shown: {error!r}")))
        return rows

    live = Live(console=console, get_renderable=drawn, refresh_per_second=2, transient=True)
    live.start(refresh=True)
    return live


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
