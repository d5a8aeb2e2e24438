"""Checks of error messages, damage to files, and calls that fail, for the tests of faults."""

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from mugrpo.disk.publishing import SUMS, seal_folder, with_checksum
from tests.runs import Ended

CUDA = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 1600000000 bytes. Error code 12 (Cannot allocate memory)"
)


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
    then = "after the repair, " if "`mugrpo repair" in sentence else ""
    parts = (*parts, f"Nothing published is lost; {then}resume with: mugrpo ")
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


def summed(path: Path) -> None:
    """Make the checksums in a file of JSON fit its content, as whoever edits it could."""
    lines = path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
    texts = []
    for text in lines:
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            stored = dict(json.loads(text))
            stored.pop("sha256", None)
            text = json.dumps(with_checksum(stored)).encode()
        texts.append(text + b"\n")
    path.write_bytes(b"".join(texts))


def accepted(run_dir: Path) -> None:
    """Make all checksums fit the run's files as they are now, those in its checkpoints too."""
    files = [*run_dir.glob("*.json*"), *run_dir.glob("*/*.json"), *run_dir.glob("*/*/*/*.json")]
    for file in files:
        if file.is_file() and file.name not in ("plan.json",):
            summed(file)
    for folder in run_dir.glob("checkpoints/update-*"):
        with suppress(OSError, ValueError, TypeError, RecursionError):
            stored = dict(json.loads((folder / "stages.json").read_text()))
            stored["config"] = json.loads((run_dir / "config.json").read_text())
            (folder / "stages.json").write_text(json.dumps(stored))
        (folder / SUMS).unlink()
        seal_folder(folder)


def fail_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *calls: int, error: Exception = CPU
) -> list[int]:
    """Raise `error` at the given `calls` of `owner.name`, counted from 1. Return a list whose only
    element is the number of calls so far."""
    original, count = getattr(owner, name), [0]

    def failing(*args: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] in calls:
            raise error
        return original(*args, **options)

    monkeypatch.setattr(owner, name, failing)
    return count
