"""The lines of a run's journal: their form, and the chain of hashes that holds them together."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any

CONFIG = "config.json"
METRICS = "metrics.jsonl"

RESTORABLE = (CONFIG, "origin.json", "stages/*/*/manifest.json")
RECORDED = (
    *RESTORABLE,
    METRICS,
    "evaluations/*/*/manifest.json",
    "checkpoints/*/sha256.json",
    "samples/*.json",
    "nonfinite/*.json",
)
_END = 19  # bytes at the end of a line: 16 digits of the chain, then `"}` and a newline


@dataclass(frozen=True)
class Mark:
    """A state of a file: its checksum, that of its first `size` bytes if it grows, its content."""

    sha256: str
    size: int | None = None
    content: Any = None

    def fits(self, file: Path) -> bool:
        """Return whether `file` is in this state. Raises OSError if it cannot be read."""
        with open(file, "rb") as content:
            if self.size is None:
                return hashlib.file_digest(content, "sha256").hexdigest() == self.sha256
            data = content.read(self.size)
        return len(data) == self.size and hashlib.sha256(data).hexdigest() == self.sha256


def mark_of(name: str, data: bytes) -> dict[str, Any]:
    """Return the part of a line that says what the file `name` contains."""
    mark: dict[str, Any] = {"sha256": hashlib.sha256(data).hexdigest()}
    if name == METRICS:
        mark["size"] = len(data)
    if is_among(name, RESTORABLE):
        with suppress(ValueError, RecursionError):  # damaged before its journal began
            mark["content"] = json.loads(data)
    return mark


def is_among(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a file's name in a run fits one of `patterns`, and leads nowhere else."""
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts or ".tmp." in name or ".bad" in name:
        return False
    depth = len(path.parts)
    return any(path.match(p) for p in patterns if len(PurePath(p).parts) == depth)


def is_well_formed(line: Mapping[str, Any]) -> bool:
    """Return whether a line says what a run could have written. A run may come from elsewhere."""
    path, size, heads = line.get("path"), line.get("size"), line.get("after", [])
    return (
        (path is None or (isinstance(path, str) and is_among(path, RECORDED)))
        and isinstance(line.get("sha256", ""), str)
        and (size is None or (type(size) is int and size >= 0))
        and isinstance(line.get("dropped", ""), str)
        and isinstance(heads, list)
        and all(isinstance(head, str) for head in heads)
    )


def as_line(mark: Mark) -> dict[str, Any]:
    parts = {"sha256": mark.sha256, "size": mark.size, "content": mark.content}
    return {key: value for key, value in parts.items() if value is not None}


def chained(lines: Iterable[Mapping[str, Any]], chain: str) -> Iterator[bytes]:
    """Yield the lines as they are written, each with the hash of itself and of what precedes."""
    for line in lines:
        text = json.dumps(line)
        chain = hashlib.sha256(f"{chain}{text}".encode()).hexdigest()[:16]
        yield json.dumps({**line, "chain": chain}).encode() + b"\n"


def last_chain(file: IO[bytes]) -> str:
    """Return the chain of the last line. Remove a line after it that a kill cut short."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return ""
    file.seek(max(size - _END, 0))
    end = file.read()
    if not end.endswith(b"\n"):
        file.seek(0)
        whole = file.read()
        file.truncate(whole.rfind(b"\n") + 1)
        return last_chain(file)
    return end[:16].decode(errors="replace")


def head_in(checkpoint: Path) -> str | None:
    """Return the end of the chain that a checkpoint was written after, or None."""
    try:
        head = json.loads((checkpoint / "stages.json").read_text())["journal"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # an older one, or a damaged one, which its seal tells
    return head if isinstance(head, str) else None
