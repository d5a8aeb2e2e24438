import io
import re

import pytest
from rich.console import Console

from mugrpo.run import progress as module
from mugrpo.run.progress import Progress
from mugrpo.run.signs import Signs


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
    progress.begin("stage 1 (last: 3)  optimize", "updates", 40)
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
    assert progress.line() == "stage 1 (last: 3)  optimize  20/40 updates  50 tokens/s  0:40 left"


@pytest.mark.parametrize(
    ("before", "done", "text"),
    [(0, 1, "0:04"), (0, 19, "0:04"), (0, 20, "3:16 left"), (600, 200, "0:04 left")],
)
def test_the_time_left_is_told_once_a_fiftieth_is_done(clock, before, done, text):
    """Of 1000 rollouts, 20 in 4 s: the other 980 take 196 s. Of those after 600, half in 4 s."""
    progress = Progress(Console(file=io.StringIO()))
    progress.begin("stage 1", "rollouts", 1000, done=before)
    clock.now += 4
    progress.advance(done)
    assert progress.line() == f"stage 1  {before + done}/1000 rollouts  {text}"


def test_without_a_terminal_a_line_is_printed_after_half_a_minute_and_at_the_end(clock):
    out = io.StringIO()
    progress = Progress(Console(file=out, soft_wrap=True))
    progress.begin("stage 0 (last: 3)  generate", "rollouts", 40)
    for seconds, rollouts, tokens in ((11, 4, 110), (20, 4, 200), (5, 8, 0), (6, 24, 0)):
        clock.now += seconds
        progress.advance(rollouts, tokens)
    progress.measured = "accuracy 0.250"
    progress.end()
    progress.say("a sentence")
    assert out.getvalue().splitlines() == [
        "stage 0 (last: 3)  generate  8/40 rollouts  10 tokens/s  2:04 left",
        "stage 0 (last: 3)  generate  40/40 rollouts  7 tokens/s  0:42  accuracy 0.250",
        "a sentence",
    ]


def test_a_terminal_has_a_bar_that_leaves_nothing(clock, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=True, width=200, _environ={}))
    progress.begin("stage 0 (last: 3)  generate", "rollouts", 40)
    progress.advance(8)
    assert progress._display is not None and "8/40 rollouts" in str(progress._display.tasks)
    progress.advance(32)
    progress.end()
    assert progress._display is None
    assert "40/40 rollouts" in out.getvalue().splitlines()[-1]


@pytest.mark.parametrize("width", [66, 80, 130])
def test_all_of_it_is_in_one_line_of_a_narrow_terminal(clock, monkeypatch, width):
    """ "stage 0 (last: 3) generate 8/40 10 tok/s 0:44 left accuracy 0.250" has 64 characters."""
    monkeypatch.delenv("CI", raising=False)
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=True, width=width, _environ={}))
    progress.measured = "accuracy 0.250"
    progress.begin("stage 0 (last: 3)  generate", "rollouts", 40)
    clock.now += 11
    progress.advance(8, 110)
    display = progress._display
    assert display
    plain = io.StringIO()
    Console(file=plain, width=width).print(display.make_tasks_table(display.tasks))
    (line,) = plain.getvalue().splitlines()
    for part in ("8/40", "10 tok", "0:44 left", "accuracy 0.250"):
        assert part in line
    assert ("━" in line) == (width == 130)
    progress.stop()


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true"}])
def test_where_nothing_can_be_redrawn_there_are_plain_lines(clock, monkeypatch, environment):
    monkeypatch.setenv("CI", environment.get("CI", ""))
    console = Console(file=io.StringIO(), force_terminal=True, _environ=environment)
    progress = Progress(console)
    progress.begin("stage 0 (last: 3)  generate", "rollouts", 40)
    assert progress._display is None


def test_each_sign_is_said_once_by_the_line_that_goes_beyond_its_limit():
    """Accuracy falls from 0.5 by 0.05, then 0.06; entropy to 1/200 of the first, then less."""
    signs, said = Signs(), list[str]()
    lines: list[tuple[str, int, dict[str, float | None]]] = [
        ("refresh", 0, {"truncated_share": 0.1}),
        ("evaluation", 0, {"accuracy": 0.5}),
        ("update", 1, {"ratio/negative/max": 100.0, "entropy": 1.0}),
        ("evaluation", 2, {"accuracy": 0.45}),
        ("evaluation", 3, {"accuracy": None}),
        ("evaluation", 3, {"accuracy": 0.4, "accuracy_high": 0.5}),  # within its interval
        ("update", 3, {"ratio/negative/max": None, "entropy": 0.005}),
    ]
    for kind, update, values in lines:
        signs.see(kind, update, values, said.append)
    assert said == []
    for _ in range(2):
        signs.see("update", 4, {"ratio/negative/max": 100.1, "entropy": 0.0049}, said.append)
        signs.see("evaluation", 5, {"accuracy": 0.44}, said.append)
        signs.see("refresh", 6, {"truncated_share": 0.11}, said.append)
        signs.see("refresh", 7, {"truncated_share": 0.5}, said.append)
    numbers = [re.findall(r"[\d.]*\d", sentence) for sentence in said]
    assert numbers == [
        ["4", "0", "100", "100"],  # update, A < 0, ratio, limit
        ["4", "0.0049", "0.005"],
        ["5", "0.06", "0", "0.05"],
        ["6", "11", "10"],
        ["7", "10", "50"],
    ]


def test_a_collapse_is_a_fall_by_more_than_half_of_the_best_beyond_the_interval():
    """Accuracy 0.8, then 0.41, then 0.39; rewards 2, then 1.1 within an interval, then 0.9."""
    for name, lines in {
        "accuracy": [({"accuracy": 0.8}, 0), ({"accuracy": 0.41}, 0), ({"accuracy": 0.39}, 1)],
        "reward": [
            ({"reward": 2.0}, 0),
            ({"reward": 0.9, "reward_high": 2.1}, 0),
            ({"reward": 0.9, "reward_high": 1.5}, 1),
        ],
    }.items():
        signs, said = Signs(), list[str]()
        for update, (values, collapsed) in enumerate(lines):
            signs.see("evaluation", update, values, said.append)
            assert bool(signs.collapse) == bool(collapsed)
            signs.see("evaluation", update - 1, {name: -9.0}, said.append)  # an older policy's
            assert signs.collapse is None
        assert f"a collapse: {name} fell from" in said[-1]
        signs.see("update", 4, {}, said.append)
        assert signs.collapse is None  # it stops a run once
