"""What the tests of faults ask of sentences, and the harm they do to files."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.runs import Ended


def refused(ended: Ended, *parts: str) -> None:
    """One sentence or two with all `parts`, exit status 2."""
    assert ended.status == 2, ended
    assert ended.err.startswith("mugrpo: ") and ended.err.count("\n") == 1
    assert [part for part in parts if part not in ended.err] == [], ended.err


def stopped(ended: Ended, *parts: str) -> None:
    """One sentence or two with all `parts` and how to resume, exit status 3."""
    assert ended.status == 3, ended
    sentence = ended.err[ended.err.index("mugrpo: ") :]
    assert sentence.count("\n") == 1
    parts = (*parts, "Nothing published is lost; resume with: mugrpo ")
    assert [part for part in parts if part not in sentence] == [], sentence


def resume_words(ended: Ended) -> list[str]:
    """The command that the sentence says to type, as a shell would split it."""
    words = shlex.split(ended.err.partition("resume with: ")[2])
    assert words[0] == "mugrpo"
    return words[1:]


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file of a run but its lock."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != "lock")
    return {p.relative_to(folder): p.read_bytes() for p in files}


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def edited(path: Path, **values: object) -> None:
    """Set keys of a JSON file; None removes one."""
    stored = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({k: v for k, v in stored.items() if v is not None}))
