"""How a sandbox is run, what goes into it and what comes out."""

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mugrpo.rewards.verdict import Unfinished

INSIDE = Path(__file__).with_name("inside.py").read_text()
LONGEST_LINE = 32 << 20  # bytes of what a sandbox says of a job; JSON writes a byte as at most 6


class SandboxError(Exception):
    """A sandbox that does not do what it should. That says nothing about the program in it."""


@dataclass(frozen=True, slots=True)
class Request:
    """Jobs for a program, in the forms that `inside` names, and code that comes before it."""

    program: str
    jobs: Sequence[Mapping[str, Any]]
    setup: str = ""


TRIAL = Request("print(input()[::-1])", [{"stdin": "sesiw eht fo eno"}])


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on a job."""

    seconds: int  # of CPU time
    memory: int = 512 << 20  # bytes of address space
    files: int = 16 << 20  # bytes of a file
    processes: int = 32  # threads count too
    user: int | None = None  # who the job runs as, if it begins as root
    filter: str | None = None  # of system calls, as the kernel's instructions in base 16

    def text(self, request: Request) -> str:
        """Return what `inside` reads: a request under these limits."""
        return json.dumps({**asdict(request), "limits": asdict(self)})


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job's process ended, as an exit code or a negative signal, and what it gave.

    The output is None if it was too long.
    """

    status: int
    output: str | None

    def __post_init__(self) -> None:
        if type(self.status) is not int or not isinstance(self.output, str | None):
            raise TypeError("no outcome has this form")


def outcomes(
    command: Sequence[str],
    request: str,
    patience: float,
    descriptors: Sequence[int] = (),
) -> Generator[Outcome, None, None]:
    """Yield what a command that reads `request` from stdin tells, until a job ends the sandbox.

    It gets only `descriptors`, and no environment. Raises Unfinished after `patience` seconds, and
    SandboxError if the sandbox fails.
    """
    deadline = time.monotonic() + patience
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as errors:
        source.write(request.encode())
        source.seek(0)
        process = subprocess.Popen(
            command,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=descriptors,
            env={"PYTHONHASHSEED": "0"},  # a set is always printed in the same order
            cwd="/",
        )
        assert process.stdout is not None
        try:
            lines = _lines(process.stdout.fileno(), deadline, patience)
            if b"ready" not in next(lines, b""):
                process.wait()
                errors.seek(0)
                said = errors.read(4096).decode("utf-8", "replace").strip().splitlines()
                raise SandboxError(said[-1] if said else f"ended with status {process.returncode}")
            for line in lines:
                try:
                    yield Outcome(**json.loads(line))
                except (ValueError, TypeError, RecursionError):
                    # Only a program that writes into the judge's stream can make such a line, so it
                    # ends the sandbox as if the program had: an error would spare it the verdict.
                    return
        finally:
            process.kill()
            with suppress(OSError), process.stdout:  # it closes once all that could write has ended
                while os.read(process.stdout.fileno(), 1 << 16):
                    pass
            process.wait()


def _lines(source: int, deadline: float, patience: float) -> Iterator[bytes]:
    """Yield lines until `source` closes or one is too long. Raises Unfinished at the deadline."""
    text = bytearray()
    while True:
        left = max(0.0, deadline - time.monotonic())
        if not select.select([source], [], [], left)[0]:
            raise Unfinished(f"not finished within {patience:g} seconds")
        piece = os.read(source, 1 << 16)
        if not piece:
            return
        text += piece
        if len(text) > LONGEST_LINE:
            return
        if b"\n" in piece:
            *lines, rest = bytes(text).split(b"\n")
            text = bytearray(rest)
            yield from lines
