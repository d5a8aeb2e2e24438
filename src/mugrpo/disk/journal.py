"""RUN/journal.jsonl: checksums of what the run has written, to find changed and lost files.

    {"path": "stages/000/plan/manifest.json", "sha256": "...", "changes": [...], "chain": "..."}
    {"path": "stages/000/plan/manifest.json", "done": true, "chain": "..."}

The first line is written before a file is published, the second one after. So a kill between them
leaves either state of the file. Files that list checksums of others (manifests, seals) are listed
here, and `chain` is a hash of the line and of the chain before it. A checkpoint keeps the chain's
end, under its own seal. So everything in a run is under a checksum, except the lines of
metrics.jsonl after the last checkpoint. `changes` say how the content of config.json or a manifest
differs from what it was before, so that `mugrpo repair` can restore it.

This finds accidents. It is no signature: whoever can write to a run can write its journal too.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.full_disk import full_disk_explained
from mugrpo.disk.journal_lines import (
    METRICS,
    RECORDED,
    Mark,
    as_line,
    chained,
    continues,
    head_in,
    is_among,
    is_well_formed,
    last_chain,
    mark_of,
    told,
)

NAME = "journal.jsonl"
_LOOKS = 3  # at a file that seems damaged
LISTS = ("manifest.json", "sha256.json")  # they hold checksums of the files beside them


@dataclass
class Entry:
    """What the journal says of a file: its last state, and the one that was being published."""

    last: Mark | None = None
    coming: Mark | None = None

    def fault(self, file: Path) -> str | None:
        """Return what is wrong with `file`, or None.

        Raises PermissionError if it may not be read, because nothing may be wrong with it.
        """
        try:
            file.lstat()
            fits = (self.coming and self.coming.fits(file, grown=False)) or (
                self.last and self.last.fits(file)
            )
        except (FileNotFoundError, NotADirectoryError):
            return None if self.coming or not self.last else "is missing"
        except PermissionError:
            raise
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        return None if fits else "is not what the run wrote"


@dataclass
class Journal:
    """The journal of the run at `root`.

    Several processes and threads may write to it. Reading it raises RunStopped, naming the line, if
    it is damaged.
    """

    root: Path
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.path = self.root / NAME

    def exists(self) -> bool:
        return os.path.lexists(self.path)

    def begin(self) -> None:
        """Begin a journal with the files that the run has now. Nothing tells if they are intact."""
        heads = [head for folder in self._checkpoints() if (head := head_in(folder))]
        lines: list[dict[str, Any]] = [{"after": heads}]
        for name in sorted(self._found()):
            mark = mark_of(name, (self.root / name).read_bytes())
            lines.append({"path": name, **mark, "done": True})
        temporary = self.path.with_name(f"{NAME}.tmp.{os.getpid()}")
        temporary.write_bytes(b"".join(chained(lines, "")))
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, self.path)

    def head(self) -> str:
        """Return the end of the chain."""
        with self._locked() as file:
            return last_chain(file)

    def entries(self) -> dict[str, Entry]:
        """Return path -> entry for the files of the run."""
        entries: dict[str, Entry] = {}
        for line in self._lines():
            path = line.get("path")
            if gone := line.get("dropped"):
                for name in [name for name in entries if PurePath(name).is_relative_to(gone)]:
                    del entries[name]
            elif path:
                entry = entries.setdefault(path, Entry())
                if "sha256" in line:
                    entry.coming = told(line, entry.last)
                if line.get("done"):
                    entry.last, entry.coming = entry.coming or entry.last, None
        return entries

    def marks(self, name: str) -> list[Mark]:
        """Return every recorded state of a file, up to the first damaged line of the journal."""
        marks = []
        with suppress(RunStopped):
            for line in self._lines():
                if line.get("path") == name and "sha256" in line:
                    marks.append(told(line, None))
        return marks

    def faults(self, among: Collection[str] | None = None) -> dict[str, str]:
        """Return path -> what is wrong with it, for every file that is not as the run wrote it.

        `among` says which files to look at. A checkpoint that is gone is no fault: runs remove old
        ones, and so may people.
        """
        entries = {p: e for p, e in self.entries().items() if among is None or p in among}
        found = {path: fault for path, e in entries.items() if (fault := e.fault(self.root / path))}
        removed = (p for p in found if p.startswith("checkpoints/"))
        for path in [p for p in removed if not (self.root / p).parent.exists()]:
            del found[path]
        return found

    def require(self, among: Collection[str] | None = None) -> None:
        """Raise RunStopped, with the way out, if `faults` finds any. No journal is no fault."""
        faults = self.faults(among) if self.exists() else {}
        for _ in range(_LOOKS):  # a run may have published the file since its journal was read
            if not faults:
                return
            faults = self.faults(faults)
        if faults:
            (path, fault), *others = faults.items()
            damaged = "other file is" if len(others) == 1 else "other files are"
            more = f", and {len(others)} {damaged} damaged" if others else ""
            raise RunStopped(
                f"{self.root / path} {fault}{more}; `mugrpo repair {self.root}` restores what it "
                "can and sets the rest aside"
            )

    def require_any(self) -> None:
        """Raise RunStopped if there is no journal."""
        if not self.exists():
            raise self._broken("it is missing")

    def settle(self) -> None:
        """Make final what a killed process left between two lines. The caller holds the lock."""
        for path, entry in self.entries().items():
            if entry.coming and os.path.lexists(self.root / path):
                done = entry.coming.fits(self.root / path, grown=False)
                mark = {} if done or not entry.last else as_line(entry.last)
                self.append([{"path": path, **mark, "done": True}])
            elif entry.coming:
                self.append([{"dropped": path}])

    def append(self, lines: Sequence[Mapping[str, Any]], *, durable: bool = True) -> None:
        """Add lines. Unless `durable`, they may be lost if the machine fails.

        Raises RunStopped if the disk is full.
        """
        with full_disk_explained(self.path), self._locked() as file:
            data = b"".join(chained(lines, last_chain(file)))
            file.seek(0, os.SEEK_END)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines. A last one that a kill cut short is left out."""
        chain, known = "", set[str]()
        newest = self._checkpoints()[-1:]  # looked at first: what it was written after is read then
        heads = [head for folder in newest if (head := head_in(folder))]
        try:
            with self._locked(os.O_RDONLY) as file:
                data = file.read()
        except PermissionError:
            raise
        except OSError as error:
            raise self._broken(f"it cannot be read ({error.strerror})") from None
        for number, text in enumerate(data.splitlines(keepends=True), start=1):
            if not text.endswith(b"\n"):
                break
            try:
                line = dict(json.loads(text))
            except (ValueError, TypeError, RecursionError) as error:
                raise self._broken(f"line {number} is unreadable ({error})") from None
            if not is_well_formed(line):
                raise self._broken(f"line {number} is none that a run writes")
            if not continues(text, chain):
                raise self._broken(f"line {number} does not continue the line before it")
            chain = line["chain"]
            known |= {chain, *line.get("after", [])}
            yield line
        if not known.issuperset(heads):
            raise self._broken(f"lines are missing that {newest[0].name} was written after")

    def _broken(self, fault: str) -> RunStopped:
        return RunStopped(
            f"{self.path}: {fault}; `mugrpo repair {self.root}` begins a new one, from the files "
            "as they are now"
        )

    @contextmanager
    def _locked(self, mode: int = os.O_RDWR) -> Iterator[IO[bytes]]:
        descriptor = os.open(self.path, mode | os.O_NOFOLLOW)
        with open(descriptor, "rb" if mode == os.O_RDONLY else "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_SH if mode == os.O_RDONLY else fcntl.LOCK_EX)
            yield file

    def _checkpoints(self) -> list[Path]:
        return sorted(p for p in self.root.glob("checkpoints/update-*") if p.name[7:].isdigit())

    def _found(self) -> Iterator[str]:
        """Yield the names of the files that belong into the journal and are not links."""
        for pattern in RECORDED:
            for path in self.root.glob(pattern):
                name = path.relative_to(self.root).as_posix()
                own = path.resolve() == self.root.resolve() / name  # not another run's, linked
                if own and path.is_file() and is_among(name, RECORDED):
                    yield name


def journal_of(path: Path) -> tuple[Journal, str] | None:
    """Return the journal that records the file `path`, and the file's name in it, or None."""
    place = _place(path)
    return place if place and is_among(place[1], RECORDED) else None


def _place(path: Path) -> tuple[Journal, str] | None:
    """Return the journal of the nearest folder above `path` that has one, and its path there."""
    path = path.parent.resolve() / path.name
    root = next((parent for parent in path.parents if (parent / NAME).is_file()), None)
    return (Journal(root), path.relative_to(root).as_posix()) if root else None


def forget(path: Path) -> None:
    """Forget the file at `path`, and all files below it: they are about to be removed."""
    if place := _place(path):
        journal, name = place
        if any(PurePath(known).is_relative_to(name) for known in journal.entries()):
            journal.append([{"dropped": name}])


@contextmanager
def recorded(files: Mapping[Path, bytes]) -> Iterator[None]:
    """Record the publication, in the block, of each of `files` with its content."""
    known = {path: place for path in files if (place := journal_of(path))}
    lines = []
    for path, (_, name) in known.items():
        before = path.read_bytes() if path.is_file() else b""
        lines.append({"path": name, **mark_of(name, files[path], before)})
    journals = [journal for journal, _ in known.values()][:1]  # they are the same
    for journal in journals:
        journal.append(lines)
    yield
    grows = any(line["path"] == METRICS for line in lines)  # only once this is told
    for journal in journals:
        journal.append([{"path": line["path"], "done": True} for line in lines], durable=grows)


def record_growth(path: Path) -> dict[str, Any]:
    """Record the present content of a file that only grows. Return its mark, if any."""
    if not (place := journal_of(path)):
        return {}
    journal, name = place
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        mark = mark_of(name, file.read())
    journal.append([{"path": name, **mark, "done": True}])
    return mark
