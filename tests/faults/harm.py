"""Checks of error messages, and damage to files, for the tests of faults."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.runs import Ended


def refused(ended: Ended, *parts: str) -> None:
    """Check for exit status 2 and a message on one line that contains all `parts`."""
    assert ended.status == 2, ended
    assert ended.err.startswith("mugrpo: ") and ended.err.count("\n") == 1
    assert [part for part in parts if part not in ended.err] == [], ended.err


def stopped(ended: Ended, *parts: str) -> None:
    """Check for exit status 3 and a message on one line with all `parts` and how to resume."""
    assert ended.status == 3, ended
    sentence = ended.err[ended.err.index("mugrpo: ") :]
    assert sentence.count("\n") == 1
    parts = (*parts, "Nothing published is lost; resume with: mugrpo ")
    assert [part for part in parts if part not in sentence] == [], sentence


def resume_words(ended: Ended) -> list[str]:
    """Return the arguments of the command in the message, as a shell would split them."""
    words = shlex.split(ended.err.partition("resume with: ")[2])
    assert words[0] == "mugrpo"
    return words[1:]


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the bytes of every file of a run except its lock."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != "lock")
    return {p.relative_to(folder): p.read_bytes() for p in files}


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def edited(path: Path, **values: object) -> None:
    """Set keys of a JSON file. None removes a key."""
    stored = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({k: v for k, v in stored.items() if v is not None}))
