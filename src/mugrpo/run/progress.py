"""The current phase of work: a bar on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Display
from rich.table import Column
from rich.text import Text

from mugrpo.processes.messages import visible

_PLAIN_INTERVAL = 30.0  # seconds between plain lines of one phase
_BAR = 24  # columns of a terminal that is wide enough
_WIDE = 120
_TELLING = 0.02  # share of a phase that tells how long the rest takes; the first rollouts are short


@dataclass
class _Phase:
    heading: str = ""
    unit: str = ""
    total: int = 0
    done: int = 0
    before: int = 0  # units that existed when it began
    tokens: int = 0
    began: float = field(default_factory=lambda: time.monotonic())

    def pace(self, *, short: bool = False) -> list[str]:
        """Return the count, tokens/s, and the time left or, while too little is done, taken."""
        seconds = time.monotonic() - self.began
        parts = [f"{self.done}/{self.total}" + f" {self.unit}" * (not short)]
        if self.tokens and seconds > 0:
            parts.append(f"{self.tokens / seconds:,.0f} {'tok' if short else 'tokens'}/s")
        fresh, left = self.done - self.before, self.total - self.done
        told = left and fresh >= max(1, _TELLING * (fresh + left))
        parts.append(f"{clock(seconds / fresh * left)} left" if told else clock(seconds))
        return parts


class Progress:
    """A display of the current phase of work, and of sentences between phases.

    `begin` a phase, `advance` it, `end` it; `say` a sentence. A line is printed at the end of each
    phase. Meanwhile, a terminal has that line, with a bar if there is room, and elsewhere a line is
    printed every half minute.
    """

    def __init__(self, console: Console | None = None, *, shown: bool = True) -> None:
        self.console = console or Console(
            file=sys.stdout, highlight=False, soft_wrap=True, quiet=not shown
        )
        self.measured = ""  # of the policy, such as "accuracy 0.400"
        self._display: Display | None = None
        self._phase, self._printed = _Phase(), time.monotonic()

    def begin(self, heading: str, unit: str, total: int, done: int = 0) -> None:
        """Start a phase of `total` units. `done` of them exist already."""
        self._phase = _Phase(heading, unit, total, done, done)
        self._printed = time.monotonic()
        self._show()

    def advance(self, units: int, tokens: int = 0) -> None:
        """Count `units` more as done, and the `tokens` that they took."""
        self._phase.done += units
        self._phase.tokens += tokens
        late = time.monotonic() - self._printed > _PLAIN_INTERVAL
        if self._display:
            self._show()
        elif self._phase.done < self._phase.total and late:
            self._print()

    def end(self) -> None:
        """Finish the phase and leave its last line on the screen."""
        self.stop()
        if self._phase.total:
            self._print()
        self._phase.total = 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let another phase begin and end in the block, then continue this one.

        This phase's clock stops during the block.
        """
        phase, paused = self._phase, time.monotonic()
        yield
        phase.began += time.monotonic() - paused
        self._phase, self._printed = phase, time.monotonic()
        self._show()

    def stop(self) -> None:
        """Erase the bar, whether or not the phase has ended."""
        if self._display:
            self._display.stop()
        self._display = None

    def say(self, sentence: str) -> None:
        """Print `sentence`. Characters that a terminal would obey are shown instead."""
        self.console.print(Text(visible(sentence)))

    def line(self, width: int | None = None) -> str:
        """Return the current phase in one line: count, tokens/s, time left, what was measured.

        Beyond `width` it is said in fewer words.
        """
        phase = self._phase
        line = "  ".join(filter(None, (phase.heading, *phase.pace(), self.measured)))
        if width is None or len(line) <= width:
            return line
        return " ".join((*phase.heading.split(), *phase.pace(short=True), self.measured)).rstrip()

    def _show(self) -> None:
        """Draw the bar, if the screen can be redrawn. Continuous integration is no terminal."""
        console, phase = self.console, self._phase
        if not phase.total or console.quiet or os.environ.get("CI"):
            return
        if not console.is_terminal or console.is_dumb_terminal:
            return
        if self._display is None:
            whole = Column(no_wrap=True, overflow="ellipsis")
            text = TextColumn("{task.description}", markup=False, table_column=whole)
            bar = [BarColumn(_BAR)] * (console.width >= _WIDE)
            self._display = Display(text, *bar, console=console, transient=True)
            self._display.add_task("")
            self._display.start()
        (task,) = self._display.task_ids
        line = visible(self.line(console.width - 1))
        self._display.update(task, description=line, total=phase.total, completed=phase.done)

    def _print(self) -> None:
        self._printed = time.monotonic()
        self.say(self.line())


def clock(seconds: float) -> str:
    """Return seconds as a clock shows them: 125 is "2:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
