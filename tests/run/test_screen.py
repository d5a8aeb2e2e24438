"""The screen: its text at two widths, and a terminal with a run on it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from mugrpo.run.screen import draw, plain
from mugrpo.run.state import Bar, RunState, Sign
from tests.runs import write_config
from tests.terminal import into_file, on_terminal, run_command, seen, talk

STATE = RunState(
    title="runs/demo  tapered-grpo, chain",
    status="pid 7 on host a since 2026-11-24 10:00:00; last file 2.0 s ago",
    place="stage 1 (of 0 to 3)",
    phases=("optimize", "checkpoint"),
    pace="8/32 updates  1,234 tokens/s  0:40 left",
    bars=(Bar("rollouts", 512, 512), Bar("updates", 8, 32), Bar("all", 24, 240)),
    used=245.0,
    left=730.0,
    metrics=(("accuracy", "0.750 (0.700 to 0.800) after update 16"), ("entropy", "0.5")),
    signs=(
        Sign("largest ratio, A < 0", 312.0, 100.0),
        Sign("entropy / the first", 0.5, 0.02, below=True),
    ),
    notes=("a note",),
)

WIDE = """
run      runs/demo  tapered-grpo, chain
status   pid 7 on host a since 2026-11-24 10:00:00; last file 2.0 s ago
now      stage 1 (of 0 to 3)  8/32 updates  1,234 tokens/s  0:40 left
phase    refresh  generate  score  [optimize]  [checkpoint]  evaluate
rollouts ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 512/512
updates  ━━━━━━━━━━━━━━━━╸                                                  8/32
all      ━━━━━━                                                           24/240
time     4:05 used, about 12:10 left
results  accuracy 0.750 (0.700 to 0.800) after update 16
         entropy 0.5
note     a note
warning signs: now, limit (! beyond it)
! largest ratio, A < 0       312 > 100   entropy / the first        0.5 < 0.02
"""

NARROW = """
run      runs/demo  tapered-grpo, chain
status   pid 7 on host a since
         2026-11-24 10:00:00; last file
         2.0 s ago
now      stage 1 (of 0 to 3)  8/32
         updates  1,234 tokens/s  0:40
         left
phase    refresh  generate  score
         [optimize]  [checkpoint]
         evaluate
rollouts ━━━━━━━━━━━━━━━━━━━━━━━ 512/512
updates  ━━━━━━╸                    8/32
all      ━━                       24/240
time     4:05 used, about 12:10 left
results  accuracy 0.750 (0.700 to 0.800)
         after update 16
         entropy 0.5
note     a note
warning signs: now, limit (! beyond it)
! largest ratio, A < 0       312 > 100
  entropy / the first        0.5 < 0.02
"""


@pytest.mark.parametrize(("width", "text"), [(80, WIDE), (40, NARROW)])
def test_the_screen_fits_its_width(width: int, text: str):
    assert plain(STATE, width) == text.strip("\n")


def test_what_is_unknown_takes_no_line():
    assert plain(RunState()) == ""
    alone = RunState(place="update 8", phases=("evaluate",), pace="1/2")
    assert plain(alone).splitlines() == [
        "now   update 8  1/2",
        "phase refresh  generate  score  optimize  checkpoint  [evaluate]",
    ]


def test_characters_that_a_terminal_obeys_are_shown():
    text = plain(RunState(title="\x1b[2J", status="\x07[red]", notes=("\u202e",)))
    assert [line.split()[1] for line in text.splitlines()] == ["\\x1b[2J", "\\x07[red]", "\\u202e"]


def test_colors_are_left_out_if_the_environment_asks_for_that(monkeypatch: pytest.MonkeyPatch):
    def codes() -> set[str]:
        out = io.StringIO()
        console = Console(file=out, width=80, force_terminal=True, color_system="standard")
        console.print(draw(STATE))
        return set(re.findall(r"\x1b\[([0-9;]+)m", out.getvalue()))

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "1;33" in codes()  # a sign that warns, bold and yellow
    monkeypatch.setenv("NO_COLOR", "1")
    assert codes() <= {"0", "1", "2"}  # bold and dim are no colors


def test_the_output_of_other_code_is_above_the_screen_and_does_not_tear_it():
    status, written = on_terminal(talk)
    assert status == 0
    assert "[generate]" in written and "8/40 rollouts" in written
    lines = seen(written)
    expected = ["printed", "one line", "half a line", " 20 %", "\\x1b[2Jobeyed?", "child", "child"]
    assert [line for line in lines if line in expected] == expected
    assert sum("UserWarning: a warning" in line for line in lines) == 1
    assert "a sentence" in lines and lines[-1] == "after"
    (end,) = [line for line in lines if "40/40" in line]
    assert end.startswith("stage 0 (of 0 to 3)  generate  40/40 rollouts")
    assert end.endswith("accuracy 0.250") and not any("phase" in line for line in lines)


def without_numbers(text: str) -> str:
    return re.sub(r"\d+", "0", text)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true"}])
def test_where_nothing_can_be_redrawn_the_lines_are_those_of_a_file(
    tmp_path: Path, environment: dict[str, str]
):
    _, written = on_terminal(talk, **environment)
    assert without_numbers(written) == without_numbers(into_file(talk, tmp_path / "out"))
    assert written.count("\x1b") == 1  # what `talk` writes itself


def test_a_run_on_a_terminal_leaves_the_lines_that_it_leaves_in_a_file(tmp_path: Path):
    """After Ctrl-C, after the end, and all lines in between; times aside."""
    config = str(write_config(tmp_path))
    words = ["train", config, "--run-dir"]
    redrawn = 1.2  # seconds: long enough that the screen is drawn meanwhile
    for interrupted, status in ((True, 3), (False, 0)):
        shown, stored = ([*words, str(tmp_path / name)] for name in ("shown", "stored"))
        ended, written = on_terminal(run_command, shown, interrupted, redrawn, columns=1000)
        assert ended == status
        assert "updates" in written and "warning signs" in written and "[optimize]" in written
        lines = [line.replace("/shown", "/stored") for line in seen(written)]
        expected = into_file(run_command, tmp_path / f"out {status}", stored, interrupted)
        assert comparable(lines) == comparable(expected.splitlines())


def comparable(lines: list[str]) -> list[str]:
    """Return the lines without times, those of unfinished phases and those of the test."""
    kept = [line for line in lines if not line.endswith(" left") and " at gradient" not in line]
    kept = [re.sub(r"would take .*", "", line) for line in kept]
    return [re.sub(r"  [\d,]+ tokens/s|\d+:\d\d|\d+\.\d s", "", line).rstrip() for line in kept]
