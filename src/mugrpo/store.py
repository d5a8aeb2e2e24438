"""A run's copy in an object store (S3, GCS, anything that fsspec knows), and back.

A run lives on a file system: publishing a folder is a rename, and the lock is flock; an object
store has neither. What it has is that one object appears whole or not at all. So a copy is pushed
in an order that keeps the rule that what exists is whole: shards before the manifest that lists
them, a checkpoint's files before the seal that names them, and the metrics before the checkpoints
that rest on them. A copy that was cut short is an older copy. Checksums are looked at on both ways.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mugrpo.errors import RunStopped, UsageError
from mugrpo.publishing import SUMS, publish_folder
from mugrpo.run_dir import RunDir

_MANIFEST = "manifest.json"
_LOOSE = ("samples", "nonfinite")  # folders of files that stand for themselves


class _Store:
    """The objects below a URL, by their names relative to it."""

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self._system, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise UsageError(f"{url} cannot be used ({error}); pip install what it names") from None
        self.url = url

    def read(self, name: str) -> bytes | None:
        """An object's bytes, None where there is none."""
        try:
            found: bytes = self._system.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return found

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._system.pipe_file(path, data)

    def remove(self, name: str) -> None:
        self._system.rm_file(f"{self._root}/{name}")

    def names(self) -> list[str]:
        """All objects, in order of their names."""
        found = self._system.find(self._root)
        prefix = self._system._strip_protocol(self._root).rstrip("/") + "/"
        return sorted(path.removeprefix(prefix) for path in found)


def push(run_dir: RunDir, url: str, say: Callable[[str], None] = lambda _: None) -> int:
    """Bring the copy at `url` up to what the run has published; returns the objects written.

    The run may go on meanwhile. Raises RunStopped where a file does not match its checksum.
    """
    if run_dir.read_config() is None:
        raise UsageError(f"{run_dir.root} is no run")
    checkpoints = [run_dir.checkpoint(update) for update in run_dir.checkpoint_updates()]
    copy = _Push(run_dir.root, _Store(url))
    copy.renew(run_dir.config)
    for manifest in sorted(run_dir.root.rglob(_MANIFEST)):
        copy.put_shards(manifest)
    for path in (p for folder in _LOOSE for p in sorted((run_dir.root / folder).glob("*.json"))):
        copy.renew(path)
    if run_dir.metrics.exists():
        copy.renew(run_dir.metrics)
    for folder in checkpoints:
        copy.put_checkpoint(folder)
    removed = copy.remove_other_checkpoints(checkpoints)
    say(f"{copy.written} objects written to {url}" + (f", {removed} removed" if removed else ""))
    return copy.written


class _Push:
    """Writes a run's files into a store where they are not there yet."""

    def __init__(self, root: Path, store: _Store) -> None:
        self._root = root
        self._store = store
        self.written = 0

    def renew(self, path: Path) -> None:
        """A file that stands for itself."""
        data = path.read_bytes()
        if self._store.read(self._name(path)) != data:
            self._put(path, data)

    def put_shards(self, manifest: Path) -> None:
        text = manifest.read_bytes()
        have = self._store.read(self._name(manifest))
        known = _listed(have)
        for name, sha256 in _listed(text).items():
            if known.get(name) != sha256:
                self._put_checked(manifest.with_name(name), sha256)
        if have != text:
            self._put(manifest, text)

    def put_checkpoint(self, folder: Path) -> None:
        seal = (folder / SUMS).read_bytes()
        if self._store.read(self._name(folder / SUMS)) != seal:
            for name, sha256 in json.loads(seal).items():
                self._put_checked(folder / name, sha256)
            self._put(folder / SUMS, seal)

    def remove_other_checkpoints(self, kept: list[Path]) -> int:
        """A run that is pulled goes on from the newest: none that this one has no more."""
        names = {self._name(folder) for folder in kept}
        made = [name for name in self._store.names() if name.startswith("checkpoints/")]
        gone = [name for name in made if "/".join(name.split("/")[:2]) not in names]
        for name in sorted(gone, key=lambda name: not name.endswith(f"/{SUMS}")):  # seals first
            self._store.remove(name)
        return len(gone)

    def _put_checked(self, path: Path, sha256: str) -> None:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise RunStopped(
                f"{path} does not match its checksum: it was replaced meanwhile, then push again, "
                f"or it is damaged, then `mugrpo repair {self._root}`"
            )
        self._put(path, data)

    def _put(self, path: Path, data: bytes) -> None:
        self._store.write(self._name(path), data)
        self.written += 1

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))


def pull(url: str, run_dir: RunDir, say: Callable[[str], None] = lambda _: None) -> None:
    """Make the run that `url` has a copy of, in a directory that is not there yet.

    Raises UsageError where there is no copy, or the directory is there, and RunStopped where an
    object does not match its checksum.
    """
    store, root = _Store(url), run_dir.root
    if root.exists():
        raise UsageError(f"{root} is there already; name a new directory")
    names = store.names()
    if run_dir.config.name not in names:
        raise UsageError(f"{url} holds no run (it has no {run_dir.config.name})")
    sums: dict[str, str] = {}
    loose = [n for n in names if n.startswith(tuple(f"{folder}/" for folder in _LOOSE))]
    wanted = {run_dir.config.name, *loose, *({run_dir.metrics.name} & set(names))}
    for name in names:
        folder, _, leaf = name.rpartition("/")
        if leaf in (_MANIFEST, SUMS):
            text = store.read(name)
            assert text is not None
            listed = _listed(text) if leaf == _MANIFEST else dict(json.loads(text))
            sums |= {f"{folder}/{file}": sha256 for file, sha256 in listed.items()}
            wanted.add(name)
    with publish_folder(root) as unfinished:
        for name in sorted({*wanted, *sums}):
            data = store.read(name)
            if data is None or sums.get(name) not in (None, hashlib.sha256(data).hexdigest()):
                raise RunStopped(f"{url}/{name} is missing or does not match its checksum")
            path = unfinished / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    say(f"{root}: resume with `mugrpo train {root}`")


def _listed(manifest: bytes | None) -> dict[str, str]:
    """The names and checksums of the shards that a manifest lists."""
    shards: dict[str, Any] = json.loads(manifest)["shards"] if manifest else {}
    return {f"shard-{int(n):05d}.parquet": entry["sha256"] for n, entry in shards.items()}
