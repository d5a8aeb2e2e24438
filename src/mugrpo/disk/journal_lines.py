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
_DIGITS = 16  # of the chain, which the end of a line holds
_END = _DIGITS + 3  # bytes: these digits, then `"}` and a newline


@dataclass(frozen=True)
class Mark:
    """A state of a file: its checksum, that of its first `size` bytes if it grows, its content.

    `digest` is a checksum of the content, however it is written down.
    """

    sha256: str
    size: int | None = None
    digest: str | None = None
    content: Any = None

    def fits(self, file: Path, *, grown: bool = True) -> bool:
        """Return whether `file` is in this state, or has `grown` since.

        Raises OSError if it cannot be read.
        """
        with open(file, "rb") as content:
            if self.size is None:
                return hashlib.file_digest(content, "sha256").hexdigest() == self.sha256
            more = os.fstat(content.fileno()).st_size - self.size
            if more < 0 or (more and not grown):
                return False
            return hashlib.sha256(content.read(self.size)).hexdigest() == self.sha256

    def can_be_restored(self) -> bool:
        """Return whether the content is known, and is that of the checksum."""
        return self.digest is not None and _digest(self.content) == self.digest


def told(line: Mapping[str, Any], last: Mark | None) -> Mark:
    """Return the state of a file that a line tells, if it was in the state `last` before."""
    content = None
    with suppress(KeyError, TypeError, ValueError, RecursionError):  # changes of something else
        content = changed(last.content if last else None, line.get("changes", []))
    return Mark(line["sha256"], line.get("size"), line.get("digest"), content)


def mark_of(name: str, data: bytes, before: bytes = b"") -> dict[str, Any]:
    """Return the part of a line that says what the file `name` contains.

    The content of a file that can be restored is told as changes of what it was `before`, because
    a manifest gets longer with every shard.
    """
    mark: dict[str, Any] = {"sha256": hashlib.sha256(data).hexdigest()}
    if name == METRICS:
        mark["size"] = len(data)
    if is_among(name, RESTORABLE) and (content := _decoded(data)) is not None:
        mark["digest"] = _digest(content)
        mark["changes"] = list(changes(_decoded(before), content))
    return mark


def changes(old: Any, new: Any, depth: int = 2) -> Iterator[list[Any]]:
    """Yield what turns `old` into `new`: [path, value], or [path] for what is gone.

    A path has at most `depth` keys.
    """
    if type(old) is type(new) and old == new:
        return
    if depth == 0 or not (isinstance(old, dict) and isinstance(new, dict)):
        yield [[], new]
        return
    yield from ([[key]] for key in old if key not in new)
    for key, value in new.items():
        if key not in old:
            yield [[key], value]
        else:
            for path, *rest in changes(old[key], value, depth - 1):
                yield [[key, *path], *rest]


def changed(content: Any, made: Iterable[Sequence[Any]]) -> Any:
    """Return `content` with the changes `made` applied. `changes` finds them.

    Raises KeyError, TypeError or ValueError if they do not fit `content`.
    """
    for path, *value in made:
        content = _with(content, path, value)
    return content


def _with(content: Any, path: Sequence[str], value: Sequence[Any]) -> Any:
    if not path:
        (content,) = value
        return content
    key, *rest = path
    copy = dict(content)
    if rest:
        copy[key] = _with(copy[key], rest, value)
    elif value:
        (copy[key],) = value
    else:
        del copy[key]
    return copy


def _decoded(data: bytes) -> Any:
    """Return the content of a JSON file, or None if it is damaged or empty."""
    with suppress(ValueError, RecursionError):
        return json.loads(data)
    return None


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_DIGITS]


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
        and all(isinstance(line.get(name, ""), str) for name in ("sha256", "digest", "dropped"))
        and (size is None or (type(size) is int and size >= 0))
        and isinstance(line.get("changes", []), list)
        and isinstance(heads, list)
        and all(isinstance(head, str) for head in heads)
    )


def as_line(mark: Mark) -> dict[str, Any]:
    """Return the part of a line that says that a file is in the state `mark` again."""
    parts = {"sha256": mark.sha256, "size": mark.size, "digest": mark.digest}
    return {key: value for key, value in parts.items() if value is not None}


def chained(lines: Iterable[Mapping[str, Any]], chain: str) -> Iterator[bytes]:
    """Yield the lines as they are written, each with the hash of itself and of what precedes."""
    for line in lines:
        text = json.dumps(line).encode()
        chain = _link(chain, text)
        yield text[:-1] + _tail(chain)


def continues(text: bytes, chain: str) -> bool:
    """Return whether a line, as it was written, continues the line that ends with `chain`."""
    length = len(_tail(chain or "0" * _DIGITS))
    return text[-length:] == _tail(_link(chain, text[:-length] + b"}"))


def _link(chain: str, text: bytes) -> str:
    return hashlib.sha256(chain.encode() + text).hexdigest()[:_DIGITS]


def _tail(chain: str) -> bytes:
    return f', "chain": "{chain}"}}\n'.encode()


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
    return end[:_DIGITS].decode(errors="replace")


def head_in(checkpoint: Path) -> str | None:
    """Return the end of the chain that a checkpoint was written after, or None."""
    head = _kept_in(checkpoint, "journal")
    return head if isinstance(head, str) else None


def marks_in(checkpoint: Path) -> list[Mark]:
    """Return what a checkpoint says of the metrics that precede it, unless it is an older one."""
    mark = _kept_in(checkpoint, "metrics")
    size = mark.get("size") if isinstance(mark, dict) else None
    return [Mark(str(mark.get("sha256")), size)] if type(size) is int and size >= 0 else []


def _kept_in(checkpoint: Path, name: str) -> Any:
    try:
        return json.loads((checkpoint / "stages.json").read_text())[name]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # an older one, or a damaged one, which its seal tells
