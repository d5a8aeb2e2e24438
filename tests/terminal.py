"""A terminal for processes of tests: what they write to it, and what a person then sees."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
import termios
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread

from mugrpo.cli import main
from mugrpo.run.progress import Progress
from tests.kill_at import arm
from tests.runs import _processes

_CODES = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b])", re.DOTALL)


def seen(written: str) -> list[str]:
    """Return the lines on a terminal that is never full, after `written`, without blanks at ends.

    Of the codes, those of Rich's live display are obeyed: up, erase the line, colors.
    """
    lines, row, column = [""], 0, 0
    for argument, code, text in _CODES.findall(written):
        if code == "A":
            row -= int(argument or 1)
        elif code == "K":
            assert argument == "2"
            lines[row] = ""
        elif code:
            assert code == "m" or argument == "?25", f"unexpected code {argument}{code}"
        elif text == "\r":
            column = 0
        elif text == "\n":
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        else:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + 1 :]
            column += 1
    assert column == 0 and not any(lines[row:]), "the cursor is not on an empty line below"
    return [line.rstrip() for line in lines[:row]]


def on_terminal(
    work: Callable[..., None],
    *arguments: object,
    columns: int = 100,
    once: tuple[str, Callable[[int], object]] | None = None,
    **environment: str,
) -> tuple[int | None, str]:
    """Call `work` in a process whose stdout and stderr are a terminal.

    `once` is (text, what is called with the process's id when that text has been written). Return
    the exit status and everything that the process and its children wrote.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    name, written = os.ttyname(theirs), bytearray()
    process = _processes().Process(target=_child, args=(name, environment, work, *arguments))
    process.start()

    def read() -> None:
        awaited = once
        try:
            while some := os.read(ours, 4096):
                written.extend(some)
                if awaited and awaited[0].encode() in written:
                    awaited[1](process.pid or 0)
                    awaited = None
        except OSError:  # no process has the terminal any more
            pass

    reader = Thread(target=read)
    reader.start()
    process.join(120)
    os.close(theirs)
    reader.join(10)
    os.close(ours)
    return process.exitcode, written.decode().replace("\r\n", "\n")


def into_file(work: Callable[..., None], file: Path, *arguments: object) -> str:
    """Call `work` in a process whose stdout and stderr are `file`, and return what it wrote."""
    file.touch()
    process = _processes().Process(target=_child, args=(str(file), {}, work, *arguments))
    process.start()
    process.join(120)
    return file.read_bytes().decode()


def talk() -> None:
    """Show a phase while Python prints and warns."""
    progress = Progress()
    progress.begin("stage 0 (of 0 to 3)  generate", "rollouts", 40)
    progress.advance(8)
    print("printed")
    warnings.warn("a warning", stacklevel=1)
    time.sleep(1.2)  # the page is drawn again
    progress.say("a sentence")
    progress.accuracy = 0.25
    progress.advance(32)
    progress.end()
    print("after")


def run_command(words: list[str], interrupted: bool = False, pause: float = 0.0) -> None:
    """Run a command. Its fourth gradient takes `pause` seconds more; Ctrl-C may meet the fifth."""
    if pause:
        arm("gradient", 4, f"sleep {pause}")
    if interrupted:
        arm("gradient", 5, "SIGINT")
    sys.exit(main(words))


def _child(
    out: str, environment: Mapping[str, str], work: Callable[..., None], *arguments: object
) -> None:
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        os.environ.pop(name, None)
    os.environ.update({"TERM": "xterm", **environment})
    opened = os.open(out, os.O_RDWR | os.O_NOCTTY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(opened, descriptor)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    work(*arguments)
