"""`mugrpo watch` and `mugrpo report --every`, on runs made by hand."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

import mugrpo.report
from mugrpo.cli import main
from mugrpo.disk.errors import RunStopped
from mugrpo.report import write_report
from tests.report.synthetic import HOSTILE, evaluation, update, write_config, write_metrics
from tests.runs import Command
from tests.terminal import on_terminal, run_command, seen

pytest_plugins = ["tests.run_fixtures"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run of 8 updates that has made 3, and that this process seems to work on."""
    run = tmp_path / "run"
    write_config(run)
    write_metrics(run, [evaluation(0, 0.25), *(update(n) for n in (1, 2, 3))], torn='{"kind"')
    hold(run)
    return run


def hold(root: Path) -> None:
    holder = f"pid {os.getpid()} on host {socket.gethostname()} since noon\n"
    (root / "lock").write_text(holder)


def words_of(text: str) -> str:
    """Return a text without its spaces and line ends, which depend on the width."""
    return "".join(text.split())


def test_the_state_is_printed_once_as_plain_text(root: Path, command: Command):
    for words in ((root, "--once"), (root,)):  # this is no terminal
        ended = command("watch", *words)
        assert (ended.status, ended.err) == (0, "")
        assert words_of(f"run {root}  mu-grpo, chain") in words_of(ended.out)
        assert words_of("since noon") in words_of(ended.out)
        assert "results  accuracy 0.250 after update 0" in ended.out
        bars = [line.split() for line in ended.out.splitlines() if line.startswith("all ")]
        assert [bar[-1] for bar in bars] == ["3/8"]
        assert "\x1b" not in ended.out


def test_hostile_text_in_a_run_does_not_reach_the_terminal(root: Path, command: Command):
    write_config(root, document={"config": {"preset": HOSTILE, "schedule": {}}})
    (root / "lock").write_text(HOSTILE, errors="replace")
    ended = command("watch", root, "--once")
    assert ended.status == 0 and "\\x1b[31m" in ended.out
    assert not set(ended.out) & set("\x00\x07\x1b\x85\u202e")


def test_watching_needs_no_torch_and_writes_nothing(root: Path):
    before = {path: path.stat().st_mtime_ns for path in (root, *root.rglob("*"))}
    script = (
        "import sys; from mugrpo.cli import main; main(sys.argv[1:]); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, "watch", root, "--once"], check=True)
    assert {path: path.stat().st_mtime_ns for path in (root, *root.rglob("*"))} == before


def test_a_terminal_shows_the_run_until_it_ends_or_ctrl_c(root: Path):
    def end(_: int) -> None:
        (root / "lock").write_text("")

    def interrupt(pid: int) -> None:
        os.kill(pid, signal.SIGINT)

    for act, status_line in ((interrupt, "since noon"), (end, "stopped; `mugrpo train")):
        once = ("warning signs", act)
        status, written = on_terminal(run_command, ["watch", str(root)], once=once)
        assert status == 0
        lines = seen(written)  # the last state, once
        assert lines[0].startswith("run ") and words_of(status_line) in words_of(" ".join(lines))
        assert sum(line.startswith("run ") for line in lines) == 1


def pages(
    monkeypatch: pytest.MonkeyPatch, runs: list[Path], second: list[tuple[Path, str]]
) -> list[bool]:
    """Report `runs` every second; return whether each page asks to be loaded again.

    After the second page, write the files of `second`.
    """
    asks: list[bool] = []

    def written(targets: list[Path], out: Path | None, every: int | None) -> Path:
        path = write_report(targets, out, every)
        asks.append('<meta http-equiv="refresh" content="1">' in path.read_text())
        if len(asks) == 2:
            for file, text in second:
                file.write_text(text)
        return path

    monkeypatch.setattr(mugrpo.report, "write_report", written)
    out = runs[0].parent / "out.html"
    assert main(["report", *map(str, runs), "--out", str(out), "--every", "1"]) == 0
    return asks


def test_a_page_asks_to_be_loaded_again_until_the_runs_end(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    assert pages(monkeypatch, [root], [(root / "lock", "")]) == [True, True, False]
    assert pages(monkeypatch, [root], []) == [False]  # over already


def test_ctrl_c_ends_the_report_with_a_page_that_stays(root: Path, monkeypatch: pytest.MonkeyPatch):
    Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    asks = pages(monkeypatch, [root], [])
    assert asks[0] and not asks[-1]


def test_a_page_that_cannot_be_drawn_leaves_the_one_before(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    page = write_report([root])
    before = page.read_text()
    assert "refresh" not in before.partition("<title>")[0]
    (root / "config.json").write_text("{")
    with pytest.raises(RunStopped, match="is damaged"):
        write_report([root], every=30)
    assert page.read_text() == before and not list(root.glob("*.tmp.*"))
