"""`mugrpo view`: its keys, by textual's own pilot, at two sizes of the terminal."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from rich.style import Style
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import Input, Static
from tokenizers import Tokenizer, models

from mugrpo.cli import main
from mugrpo.disk.run_dir import RunDir
from mugrpo.extensions.view.rollouts import Rollouts
from mugrpo.extensions.view.viewer import Reading, Viewer
from mugrpo.report.readable import with_signs
from tests.extensions.view.rolled import RIGHT, rolled_run, rollout, write_shard
from tests.report.synthetic import HOSTILE, write_config

SIZES = [(80, 24), (120, 40)]


def seen(app: Viewer) -> list[str]:
    """Return the lines of the screen as they are drawn."""
    lines = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def styles(app: Viewer, pane: str) -> dict[str, Style]:
    """Return the style of each piece of a pane's text."""
    text = app.screen.query_one(f"#{pane}", Static).content
    assert isinstance(text, Text)
    return {text.plain[s.start : s.end]: s.style for s in text.spans if isinstance(s.style, Style)}


def viewed(
    run: Path, size: tuple[int, int], look: Callable[[Viewer, Pilot[None]], Awaitable[None]]
) -> None:
    """Open the viewer, and `look` at it."""

    async def through() -> None:
        app = Viewer(Rollouts(run))
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            await look(app, pilot)

    asyncio.run(through())


async def settled(app: Viewer, pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await app.workers.wait_for_complete()
    await pilot.pause()


async def filtered(app: Viewer, pilot: Pilot[None], words: str) -> None:
    """Type `words` in place of the filter, all but the last character at once."""
    await pilot.press("slash")
    app.query_one(Input).value = words[:-1]
    await settled(app, pilot, "end", words[-1], "enter")


@pytest.mark.parametrize("size", SIZES)
def test_a_list_is_filtered_and_its_keys_are_in_the_footer(tmp_path: Path, size: tuple[int, int]):
    async def look(app: Viewer, pilot: Pilot[None]) -> None:
        lines = seen(app)
        assert len(lines) == size[1] and max(map(len, lines)) <= size[0]
        assert lines[0].startswith("stage:0,eval8 status:wrong")
        assert lines[2].split() == ["0", "0/0", "right", "1", "3+2="]
        assert lines[3].split() == ["0", "0/1", "wrong", "0", "yes", "3+2="]
        assert lines[5].split() == ["0", "0/1", "error", "\u2013", "1+1="]
        assert lines[-2] == "10 of 10 rollouts"
        await filtered(app, pilot, "status:wrong stage:1,eval")
        lines = seen(app)
        assert [line.split()[0] for line in lines[2:4]] == ["1", "eval0"]
        assert lines[4] == "" and lines[-2] == "2 of 10 rollouts"
        assert [word in lines[-1] for word in ("/ filter", "q quit")] == [True] * 2
        await filtered(app, pilot, "status:rong")
        assert "there is no status 'rong'; choose among right, wrong" in " ".join(seen(app)[-3:])
        await settled(app, pilot, "escape", "q")
        assert not app.is_running

    viewed(rolled_run(tmp_path / "run"), size, look)


@pytest.mark.parametrize("size", SIZES)
def test_a_rollout_is_opened_beside_its_prompt_and_colored(tmp_path: Path, size: tuple[int, int]):
    async def look(app: Viewer, pilot: Pilot[None]) -> None:
        await settled(app, pilot, "down", "enter")
        lines = seen(app)
        assert lines[0] == "stage 0 · 3+2= · draw 0/1"
        assert lines[1] == (
            "advantage \u22120.5 · wrong · reward 0 · finished by stop · ratios 0.01 to 2"
        )
        left, right = zip(*(line.split("│") for line in lines[2:8]), strict=True)
        assert [line.strip() for line in left][:4] == ["prompt", "3+2=", "", "reference"]
        assert right[0] == "3+2=6<eos>"
        assert all(key in lines[-1] for key in ("esc", "next", "previous"))
        by_ratio = styles(app, "right")
        assert by_ratio["="].underline and by_ratio["6"].strike  # clipped, vetoed
        assert by_ratio["="].bgcolor and by_ratio["6"].bgcolor and "3" not in by_ratio
        assert by_ratio["="].bgcolor != by_ratio["6"].bgcolor
        assert "Ratios" in lines[-2]
        await settled(app, pilot, "p")  # the first rollout, of which no update kept anything
        assert seen(app)[0].endswith("draw 0/0") and "No ratios are stored" in seen(app)[-2]
        colors = {style.bgcolor for style in styles(app, "right").values()}
        assert len(colors) == 1 and None not in colors  # all had probability 1/2
        await settled(app, pilot, "escape")
        assert not isinstance(app.screen, Reading) and app.listing.cursor_row == 0

    viewed(rolled_run(tmp_path / "run"), size, look)


def test_control_characters_are_shown_and_not_obeyed(tmp_path: Path):
    """The model's own tokenizer has them as tokens; the problem's id and the reference, too."""
    run = RunDir(tmp_path / "run")
    write_config(run.root)
    texts = ["\x1b[2J\x1b]0;owned\x07", "\r\n", "\u202eabc", "[bold red]x[/]", "<unk>"]
    vocabulary = {text: number for number, text in enumerate(texts)}
    run.checkpoint(1).mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.save(str(run.checkpoint(1) / "tokenizer.json"))
    name = HOSTILE.encode(errors="ignore").decode()
    hostile = rollout("3+2=", 0, "12")
    hostile.response_ids[:] = [0, 1, 2]
    hostile.prompt_ids[:] = 3
    object.__setattr__(hostile, "problem_id", name)
    write_shard(run.stage(0), 0, [hostile], [RIGHT])

    async def look(app: Viewer, pilot: Pilot[None]) -> None:
        await settled(app, pilot, "enter")
        for lines in ([*seen(app)], [line.plain for line in contents(app)]):
            assert all(c.isprintable() for line in lines for c in line.replace("\n", ""))
        prompt, response = contents(app)
        found = response.plain
        assert found == with_signs(f"{texts[0]} {texts[1]} {texts[2]}".replace("\n", "↵\n"))
        assert "␛[2J␛]0;owned␇" in response.plain and "⟨U+202E⟩" in response.plain
        assert "[bold red]x[/]" in prompt.plain
        await settled(app, pilot, "escape")
        assert all(c.isprintable() for line in seen(app) for c in line)

    viewed(run.root, (80, 24), look)


def contents(app: Viewer) -> list[Text]:
    texts = [app.screen.query_one(f"#{pane}", Static).content for pane in ("left", "right")]
    return [text for text in texts if isinstance(text, Text)]


def test_a_shard_that_is_lost_while_one_looks_is_one_sentence(tmp_path: Path):
    run = rolled_run(tmp_path / "run")

    async def look(app: Viewer, pilot: Pilot[None]) -> None:
        (RunDir(run).shards(0, "rollouts") / "shard-00000.parquet").unlink()
        await settled(app, pilot, "enter")
        (_, text) = contents(app)
        assert text.plain.startswith("This rollout cannot be shown: ")
        assert "is missing; run `mugrpo repair RUN` to have it made again" in text.plain
        await settled(app, pilot, *"nnnn")
        assert contents(app)[1].plain == "2+2=4<eos>"

    viewed(run, (80, 24), look)


def test_a_long_list_is_cut_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mugrpo.extensions.view.viewer._LISTED", 3)

    async def look(app: Viewer, pilot: Pilot[None]) -> None:
        assert seen(app)[-2] == "10 of 10 rollouts, the first 3 are listed"
        await settled(app, pilot, "ctrl+end", "enter")
        assert seen(app)[0].endswith("1+1= · draw 0/0")

    viewed(rolled_run(tmp_path / "run"), (80, 24), look)


def test_without_textual_there_is_one_sentence_with_the_way_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "textual.app", None)
    monkeypatch.delitem(sys.modules, "mugrpo.extensions.view.viewer")
    assert main(["view", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == "mugrpo: `mugrpo view` needs textual: pip install 'mugrpo[view]'\n"
