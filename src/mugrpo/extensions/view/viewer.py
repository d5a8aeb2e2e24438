"""`mugrpo view`: a run's rollouts in the terminal, as `rollouts` reads them."""

import argparse
from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.view.rollouts import UNREADABLE, Numbers, Rollouts
from mugrpo.processes.messages import printable
from mugrpo.report import samples
from mugrpo.report.readable import line_ends, plain, with_signs

try:
    from textual.app import App, ComposeResult
    from textual.binding import Binding
    from textual.color import Color
    from textual.containers import Horizontal, VerticalScroll
    from textual.screen import Screen
    from textual.widgets import DataTable, Footer, Input, Static
except ModuleNotFoundError:
    raise UsageError("`mugrpo view` needs textual: pip install 'mugrpo[view]'") from None

_HUES = {"b": "#0069b4", "a": "#d65d0e", "p": "#d65d0e"}
_SHARES = (0.0, 0.15, 0.27, 0.4, 0.55, 0.7, 0.9)  # of the hue, by the step of a shade
_MARKS = {"clipped": Style(underline=True), "vetoed": Style(strike=True)}
_COLUMNS = ("stage", "draw", "status", "reward", "ratios", "problem")
_LISTED = 10_000  # rows at most: filter for others
_HINT = "stage:0,eval8 status:wrong reward:>=0.5 problem:ID"


def view(options: argparse.Namespace) -> None:
    """Show a run's rollouts until the user quits. Raises UsageError if the target is no run."""
    Viewer(Rollouts(options.target)).run()


class Reading(Screen[None]):
    """One rollout beside its prompt and reference."""

    BINDINGS: ClassVar = [
        *(("escape", "dismiss", "back"), ("n", "step(1)", "next"), ("p", "step(-1)", "previous")),
    ]

    def __init__(self, listing: DataTable[Text], rollouts: Rollouts) -> None:
        super().__init__()
        self.listing, self.rollouts = listing, rollouts

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
        self.listing.move_cursor(row=self.listing.cursor_row + by)
        self.draw()

    def draw(self) -> None:
        """Fill the screen with the rollout at the list's cursor."""
        key, _ = self.listing.coordinate_to_cell_key(self.listing.cursor_coordinate)
        number = int(key.value or 0)
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
            right = Text(with_signs(f"This rollout cannot be shown: {error}"))
        texts = {"facts": title, "left": left, "legend": legend}
        shown = {name: Text(with_signs(text)) for name, text in texts.items()}
        for name, content in {**shown, "right": right}.items():
            self.query_one(f"#{name}", Static).update(content)

    def _colored(self, tokens: Sequence[samples.Token]) -> Text:
        text = Text()
        for token in tokens:
            style = self._style(samples.shade(token))
            for mark in token.marks:
                style += _MARKS.get(mark, Style(italic=True))
            text.append(with_signs(line_ends(token.text)), style)
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
    DataTable, Reading Horizontal { height: 1fr; }
    #left-side { width: 2fr; border-right: solid $panel; }
    #right-side { width: 3fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        *(("slash", "focus('words')", "filter"), ("q", "quit", "quit")),
        Binding("escape", "focus('list')", show=False),
    ]

    def __init__(self, rollouts: Rollouts) -> None:
        super().__init__()
        self.rollouts = rollouts
        self.listing: DataTable[Text] = DataTable(id="list", cursor_type="row", cell_padding=0)
        self.notes, self.count = Static(id="notes"), Static(id="count")

    def compose(self) -> ComposeResult:
        words = Input(placeholder=_HINT, compact=True, id="words")
        yield from (words, self.notes, self.listing, self.count, Footer())

    def on_mount(self) -> None:
        for name, width in zip(_COLUMNS, (9, 7, 11, 8, 7, None), strict=True):
            self.listing.add_column(name, width=width)
        self.listing.focus()
        self.list_all(self.rollouts.matching(""))

    def on_data_table_row_selected(self) -> None:
        self.push_screen(Reading(self.listing, self.rollouts))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self.list_all(self.rollouts.matching(event.value))
        except UsageError as error:
            self.say(str(error))
            return
        self.listing.focus()

    def list_all(self, numbers: Numbers) -> None:
        self.listing.clear()
        for number in numbers[:_LISTED].tolist():
            row = self.rollouts.rows[number]
            draw, seen = f"{row.occurrence}/{row.sample}", row.key in self.rollouts.sampled
            cells = (row.place, draw, row.status, plain(row.reward), "yes" * seen, row.problem_id)
            self.listing.add_row(*(Text(printable(cell)) for cell in cells), key=str(number))
        cut = f", the first {_LISTED:,} are listed" if len(numbers) > _LISTED else ""
        self.say(f"{len(numbers):,} of {len(self.rollouts.rows):,} rollouts{cut}")

    def say(self, sentence: str) -> None:
        self.count.update(Text(with_signs(sentence)))
        self.notes.update(Text(with_signs("\n".join(self.rollouts.notes))))
        self.notes.display = bool(self.rollouts.notes)
