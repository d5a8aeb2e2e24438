"""`mugrpo view`: a run's rollouts in the terminal, as `report.rollouts` reads them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import ClassVar

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.view.rollouts import UNREADABLE, Numbers, Rollouts
from mugrpo.processes.messages import printable
from mugrpo.report import samples
from mugrpo.report.readable import line_ends, plain, visible

try:
    from textual.app import App, ComposeResult
    from textual.binding import Binding
    from textual.color import Color
    from textual.containers import Horizontal, VerticalScroll
    from textual.events import Click
    from textual.geometry import Region, Size
    from textual.screen import Screen
    from textual.scroll_view import ScrollView
    from textual.strip import Strip
    from textual.widgets import Footer, Input, Static
except ModuleNotFoundError:
    raise UsageError("`mugrpo view` needs textual: pip install 'mugrpo[view]'") from None

_HUES = {"b": "#0069b4", "a": "#d65d0e", "p": "#d65d0e"}
_SHARES = (0.0, 0.15, 0.27, 0.4, 0.55, 0.7, 0.9)  # of the hue, by the step of a shade
_MARKS = {"clipped": Style(underline=True), "vetoed": Style(strike=True)}
_HEAD = f"{'stage':<9}{'draw':<7}{'status':<11}{'reward':<8}{'ratios':<7}problem"
_HINT = "stage:0,eval8 status:wrong reward:>=0.5 problem:ID"
_MOVES = {"up": (-1, 0), "down": (1, 0), "pageup": (0, -1), "pagedown": (0, 1)}  # lines, pages
_MOVES |= {"home": (-(10**9), 0), "end": (10**9, 0)}


def view(options: argparse.Namespace) -> None:
    """Show a run's rollouts until the user quits. Raises UsageError if the target is no run."""
    Viewer(Rollouts(options.target)).run()


class Listing(ScrollView, can_focus=True):
    """A list of rollouts that makes only the lines that are seen."""

    BINDINGS: ClassVar = [
        *(("enter", "app.open", "open"), ("slash", "app.focus('words')", "filter")),
        *(Binding(key, f"move{by}", show=False) for key, by in _MOVES.items()),
    ]

    def __init__(self, rollouts: Rollouts) -> None:
        super().__init__(id="list")
        self.rollouts, self.cursor, self.numbers = rollouts, 0, rollouts.matching("")

    def show(self, numbers: Numbers) -> None:
        self.numbers, self.cursor = numbers, 0
        self.virtual_size = Size(0, len(numbers))
        self.action_move(0)

    def action_move(self, lines: int, pages: int = 0) -> None:
        cursor = self.cursor + lines + pages * self.size.height
        self.cursor = max(0, min(cursor, len(self.numbers) - 1))
        self.scroll_to_region(Region(0, self.cursor, 1, 1), animate=False)
        self.refresh()

    def on_click(self, event: Click) -> None:
        self.action_move(event.y + self.scroll_offset.y - self.cursor)

    def render_line(self, y: int) -> Strip:
        place = y + self.scroll_offset.y
        if place >= len(self.numbers):
            return Strip.blank(self.size.width, self.rich_style)
        row = self.rollouts.rows[int(self.numbers[place])]
        draw, seen = f"{row.occurrence}/{row.sample}", row.key in self.rollouts.sampled
        text = f"{row.place:<9}{draw:<7}{row.status:<11}{plain(row.reward):<8}{'yes' * seen:<7}"
        line = set_cell_size(printable(text + row.problem_id), self.size.width)
        return Strip([Segment(line, self.rich_style + Style(reverse=place == self.cursor))])


class Reading(Screen[None]):
    """One rollout beside its prompt and reference."""

    BINDINGS: ClassVar = [
        *(("escape", "dismiss", "back"), ("n", "step(1)", "next"), ("p", "step(-1)", "previous")),
    ]

    def __init__(self, listing: Listing) -> None:
        super().__init__()
        self.listing, self.rollouts = listing, listing.rollouts

    def compose(self) -> ComposeResult:
        yield Static(id="facts")
        sides = (VerticalScroll(Static(id=name), id=f"{name}-side") for name in ("left", "right"))
        yield Horizontal(*sides)
        yield Static(id="legend")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#right-side").focus()
        self.draw()

    def action_step(self, by: int) -> None:
        self.listing.action_move(by)
        self.draw()

    def draw(self) -> None:
        """Fill the screen with the rollout at the list's cursor."""
        number = int(self.listing.numbers[self.listing.cursor])
        row = self.rollouts.rows[number]
        problem = printable(row.problem_id, 60)
        title = f"stage {row.place} · {problem} · draw {row.occurrence}/{row.sample}"
        left = legend = ""
        try:
            prompt, tokens, advantage = self.rollouts.open(number)
            entry = {**vars(row), "advantage": advantage}
            title += f"\n{' · '.join(samples.facts(entry, tokens))}"
            reference = self.rollouts.references.get(row.problem_id, "not known")
            left = f"prompt\n{prompt}\n\nreference\n{reference}"
            right = self._colored(tokens)
            legend = (
                "Ratios: less (blue) or more (orange) likely than under the behavior policy."
                if any(token.ratio is not None for token in tokens)
                else "No ratios are stored. Orange: unlikely under the behavior policy."
            )
        except UNREADABLE as error:
            right = Text(visible(f"This rollout cannot be shown: {error}"))
        texts = {"facts": title, "left": left, "legend": legend}
        shown = {name: Text(visible(text)) for name, text in texts.items()}
        for name, content in {**shown, "right": right}.items():
            self.query_one(f"#{name}", Static).update(content)

    def _colored(self, tokens: Sequence[samples.Token]) -> Text:
        text = Text()
        for token in tokens:
            style = self._style(samples.shade(token))
            for mark in token.marks:
                style += _MARKS.get(mark, Style(italic=True))
            text.append(visible(line_ends(token.text)), style)
        return text

    def _style(self, shade: str) -> Style:
        if not shade:
            return Style()
        page = Color.parse(self.app.theme_variables["background"])
        hue = Color.parse(_HUES[shade[0]])
        return Style(bgcolor=page.blend(hue, _SHARES[int(shade[1:])]).rich_color)


class Viewer(App[None]):
    """The list of rollouts and its filter."""

    CSS = """
    #notes { max-height: 3; color: $warning; }
    #count, #facts, #legend { height: auto; max-height: 4; }
    Listing, Reading Horizontal { height: 1fr; }
    #left-side { width: 2fr; border-right: solid $panel; }
    #right-side { width: 3fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [("q", "quit", "quit"), Binding("escape", "focus('list')", show=False)]

    def __init__(self, rollouts: Rollouts) -> None:
        super().__init__()
        self.rollouts, self.listing = rollouts, Listing(rollouts)
        self.notes, self.count = Static(id="notes"), Static(id="count")

    def compose(self) -> ComposeResult:
        words = Input(placeholder=_HINT, compact=True, id="words")
        yield from (words, self.notes, Static(_HEAD), self.listing, self.count, Footer())

    def on_mount(self) -> None:
        self.listing.focus()
        self.list_all(self.listing.numbers)

    def action_open(self) -> None:
        if len(self.listing.numbers):
            self.push_screen(Reading(self.listing))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self.list_all(self.rollouts.matching(event.value))
        except UsageError as error:
            self.say(str(error))
            return
        self.listing.focus()

    def list_all(self, numbers: Numbers) -> None:
        self.listing.show(numbers)
        self.say(f"{len(numbers):,} of {len(self.rollouts.rows):,} rollouts")

    def say(self, sentence: str) -> None:
        self.count.update(Text(visible(sentence)))
        self.notes.update(Text(visible("\n".join(self.rollouts.notes))))
        self.notes.display = bool(self.rollouts.notes)
