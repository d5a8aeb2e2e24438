from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from mugrpo.run import progress as module
from mugrpo.run.progress import Progress
from tests.runs import write_config
from tests.terminal import into_file, on_terminal, run_command, seen, talk


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module.time, "monotonic", clock.monotonic)
    return clock


def test_a_phase_is_paused_while_another_runs_beside_it(clock):
    """10 of 40 updates in 20 s, an evaluation of 100 s between, 10 more in 20 s."""
    out = io.StringIO()
    progress = Progress(Console(file=out, soft_wrap=True))
    progress.begin("stage 1 (of 0 to 3)  optimize", "updates", 40)
    clock.now += 20
    progress.advance(10, tokens=1000)
    with progress.aside():
        progress.begin("update 10  evaluate", "rollouts", 50)
        clock.now += 100
        progress.advance(50, tokens=2000)
        assert progress.line() == "update 10  evaluate  50/50 rollouts  20 tokens/s  1:40"
        progress.end()
    clock.now += 20
    progress.advance(10, tokens=1000)
    # 2000 tokens in 40 s; 20 updates left at 2 s each
    assert progress.line() == "stage 1 (of 0 to 3)  optimize  20/40 updates  50 tokens/s  0:40 left"


def test_a_phase_beside_no_other_leaves_nothing_to_print(clock):
    progress = Progress(Console(file=io.StringIO()))
    with progress.aside():
        progress.begin("update 0  evaluate", "rollouts", 2)
        progress.advance(2)
        progress.end()
    out = io.StringIO()
    progress.console.file = out
    progress.end()
    assert out.getvalue() == ""


@pytest.mark.parametrize(("done", "text"), [(1, "0:04"), (19, "0:04"), (20, "3:16 left")])
def test_the_time_left_is_told_once_a_fiftieth_is_done(clock, done, text):
    """Of 1000 rollouts, 20 in 4 s: the other 980 take 196 s."""
    progress = Progress(Console(file=io.StringIO()))
    progress.begin("stage 0 (of 0 to 3)  generate", "rollouts", 1000)
    clock.now += 4
    progress.advance(done)
    assert progress.line() == f"stage 0 (of 0 to 3)  generate  {done}/1000 rollouts  {text}"


@pytest.mark.parametrize(("done", "text"), [(7, "0:04"), (8, "0:04 left")])
def test_a_few_rollouts_tell_no_time_left_even_if_they_are_half_of_all(clock, done, text):
    progress = Progress(Console(file=io.StringIO()))
    progress.begin("update 0  evaluate", "rollouts", 16)
    clock.now += 4
    progress.advance(done)
    assert progress.line() == f"update 0  evaluate  {done}/16 rollouts  {text}"


def test_of_a_phase_that_goes_on_only_the_rest_counts(clock):
    """A quarter of the rollouts was there; the next quarter took 3 s."""
    progress = Progress(Console(file=io.StringIO()))
    progress.begin("stage 1", "rollouts", 100, done=25)
    clock.now += 3
    progress.advance(25)
    assert progress.line().endswith("50/100 rollouts  0:06 left")


def test_one_of_few_updates_tells_no_time_left(clock):
    progress = Progress(Console(file=io.StringIO()))
    progress.begin("stage 0 (of 0 to 3)  optimize", "updates", 4)
    clock.now += 4
    progress.advance(1)
    assert progress.line().endswith("1/4 updates  0:04")
    clock.now += 4
    progress.advance(1)
    assert progress.line().endswith("2/4 updates  0:08 left")


def test_without_a_terminal_a_line_is_printed_after_ten_seconds_and_at_the_end(clock):
    out = io.StringIO()
    progress = Progress(Console(file=out, soft_wrap=True))
    progress.begin("stage 0 (of 0 to 3)  generate", "rollouts", 40)
    for seconds, rollouts, tokens in ((11, 8, 110), (5, 8, 0), (6, 24, 0)):
        clock.now += seconds
        progress.advance(rollouts, tokens)
    progress.behavior_reward, progress.accuracy = 0.5, 0.25
    progress.end()
    progress.say("a sentence")
    assert out.getvalue().splitlines() == [
        "stage 0 (of 0 to 3)  generate  8/40 rollouts  10 tokens/s  0:44 left",
        "stage 0 (of 0 to 3)  generate  40/40 rollouts  5 tokens/s  0:22  behavior reward 0.500  "
        "accuracy 0.250",
        "a sentence",
    ]


def test_what_python_prints_is_above_the_page_which_leaves_nothing():
    status, written = on_terminal(talk)
    assert status == 0 and "8/40 rollouts" in written
    lines = seen(written)
    said = ["printed", "a sentence"]
    assert [line for line in lines if line in said] == said
    assert sum("UserWarning: a warning" in line for line in lines) == 1 and lines[-1] == "after"
    (end,) = [line for line in lines if "40/40" in line]
    assert end.startswith("stage 0 (of 0 to 3)  generate  40/40 rollouts")
    assert not any("━" in line for line in lines)


def without_numbers(text: str) -> str:
    return re.sub(r"\d+", "0", text)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true"}])
def test_where_nothing_can_be_redrawn_the_lines_are_those_of_a_file(
    tmp_path: Path, environment: dict[str, str]
):
    _, written = on_terminal(talk, **environment)
    assert without_numbers(written) == without_numbers(into_file(talk, tmp_path / "out"))


def test_a_run_on_a_terminal_leaves_the_lines_that_it_leaves_in_a_file(tmp_path: Path):
    """After Ctrl-C, after the end, and all lines in between; times aside."""
    config = str(write_config(tmp_path))
    words = ["train", config, "--run-dir"]
    redrawn = 1.2  # seconds: long enough that the page is drawn meanwhile
    for interrupted, status in ((True, 3), (False, 0)):
        shown, stored = ([*words, str(tmp_path / name)] for name in ("shown", "stored"))
        ended, written = on_terminal(run_command, shown, interrupted, redrawn, columns=1000)
        assert ended == status
        assert "updates" in written and "warning signs" in written
        lines = [line.replace("/shown", "/stored") for line in seen(written)]
        expected = into_file(run_command, tmp_path / f"out {status}", stored, interrupted)
        left = iter(comparable(lines))
        assert all(line in left for line in comparable(expected.splitlines()))
        assert len(lines) - len(expected.splitlines()) <= 2  # the test's own lines tear the page


def comparable(lines: list[str]) -> list[str]:
    """Return the lines without times, those of unfinished phases and those of the test."""
    kept = [line for line in lines if not line.endswith(" left") and " at gradient" not in line]
    kept = [re.sub(r"would take .*", "", line) for line in kept]
    return [re.sub(r"  [\d,]+ tokens/s|\d+:\d\d|\d+\.\d s", "", line).rstrip() for line in kept]
