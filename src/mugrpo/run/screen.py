"""A run's state as text, and the live screen that shows it at the foot of a terminal."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from threading import Thread
from typing import IO

from rich.columns import Columns
from rich.console import Console, ConsoleDimensions, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mugrpo.processes.shown import shown
from mugrpo.report.readable import duration
from mugrpo.run.state import PHASES, Bar, RunState, Sign

_WIDEST = 100  # columns
_REDRAWS = 2  # per second


def draw(state: RunState) -> RenderableType:
    """Return the state for a console of any width. What is unknown takes no line.

    Characters that a terminal would obey are shown instead.
    """
    rows = Table.grid(padding=(0, 1), expand=True)
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(ratio=1, overflow="fold")
    others = [phase for phase in state.phases if phase not in PHASES]
    phases = [f"[{p}]" if p in state.phases else p for p in (*PHASES, *others)]
    times = [f"{duration(state.used)} used"] if state.used is not None else []
    times += [f"about {duration(state.left)} left"] if state.left is not None else []
    accuracy, *metrics = [f"{name} {value}" for name, value in state.metrics] or [""]
    entries: list[tuple[str, str | Bar]] = [
        ("run", state.title),
        ("status", state.status),
        ("now", "  ".join(filter(None, (state.place, state.pace)))),
        ("phase", "  ".join(phases) if state.phases else ""),
        *((bar.name, bar) for bar in state.bars),
        ("time", ", ".join(times)),
        ("results", accuracy),
        ("", ", ".join(metrics)),
        *(("note", note) for note in state.notes),
    ]
    for name, entry in entries:
        if entry:
            rows.add_row(name, _bar(entry) if isinstance(entry, Bar) else Text(shown(entry)))
    page = Table.grid(expand=True)  # its cells wrap, whatever the console's soft_wrap
    page.add_row(rows)
    if state.signs:
        page.add_row(Text("warning signs: now, limit (! beyond it)", style="dim"))
        page.add_row(Columns(map(_sign, state.signs), padding=(0, 1)))
    return Constrain(page, _WIDEST)


def plain(state: RunState, width: int = 80) -> str:
    """Return the state as lines of text, without colors."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as drawn:
        console.print(draw(state))
    return "\n".join(line.rstrip() for line in drawn.get().splitlines())


class Screen:
    """What `state` returns, redrawn in place at the foot of the terminal `file` until `stop`.

    What this process and its children write to the terminal meanwhile appears above it, line by
    line. The cursor stays visible, on an empty line below, so that even a kill leaves a terminal
    that can be used.
    """

    def __init__(self, state: Callable[[], RunState], file: IO[str]) -> None:
        file.flush()
        self._state = state
        self._shown = True
        terminal = os.fdopen(os.dup(file.fileno()), "w")
        self.console = _Terminal(file=terminal, highlight=False, soft_wrap=True)
        self._live = Live(
            console=self.console,
            get_renderable=self._page,
            refresh_per_second=_REDRAWS,
            transient=True,
            redirect_stdout=False,  # only Python's; the pipe below takes everything
            redirect_stderr=False,
        )
        reader, writer = os.pipe()
        self._lines = Thread(target=self._print_above, args=(reader,), daemon=True)
        self._lines.start()
        self._restore = [(fd, os.dup(fd)) for fd in (1, 2) if os.isatty(fd)]
        for fd, _ in self._restore:
            os.dup2(writer, fd)
        os.close(writer)
        self._live.start(refresh=True)

    def stop(self) -> None:
        """Erase the screen, and give the terminal back."""
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, saved in self._restore:
            os.dup2(saved, fd)
            os.close(saved)
        self._lines.join(1.0)  # a child that still runs keeps the pipe open
        self._shown = False
        self._live.stop()

    def say(self, text: str) -> None:
        """Print `text` above the screen."""
        self.console.print(Text(shown(text)))

    def _page(self) -> RenderableType:
        if not self._shown:
            return Text("")
        page = Table.grid()
        try:
            page.add_row(draw(self._state()))
        except Exception as error:  # a fault here must not end the training
            page.add_row(Text(shown(f"the run's state cannot be shown: {error!r}")))
        page.add_row("")  # where the cursor stays
        return page

    def _print_above(self, reader: int) -> None:
        with open(reader, "rb") as pipe:
            for line in pipe:
                text = line.decode(errors="replace").rstrip("\r\n").expandtabs()
                self.say(text.rpartition("\r")[2])  # the last state of a progress bar


class _Terminal(Console):
    """A console that never hides the cursor, and is as wide as its own file."""

    def show_cursor(self, show: bool = True) -> bool:
        return False

    @property
    def size(self) -> ConsoleDimensions:
        width, height = os.get_terminal_size(self.file.fileno())
        return ConsoleDimensions(width or 80, height or 25)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        raise AssertionError("a terminal has the size that it has")


def _bar(bar: Bar) -> RenderableType:
    line = Table.grid(padding=(0, 1), expand=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    done = min(bar.done, bar.total)
    line.add_row(ProgressBar(bar.total or 1, done), f"{bar.done}/{bar.total}")
    return line


def _sign(sign: Sign) -> Text:
    mark, relation = "!" if sign.warns else " ", "<" if sign.below else ">"
    value = f"{round(sign.value, 4):.3g}"
    text = f"{mark} {sign.name:<23} {value:>6} {relation} {sign.limit:g}"
    return Text(text, style="bold yellow" if sign.warns else "")
