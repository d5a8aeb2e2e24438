"""A run's copy in an object store (S3, GCS, anything that fsspec knows): push and pull.

A run lives on a file system, where a rename publishes a folder and flock is the lock. An object
store has neither, but an object appears whole or not at all. So the order of a push ensures that
whatever the copy lists is complete. What has changed or is gone from the run is removed first.
Shards come before the manifest that lists them, a checkpoint's files before the seal that names
them, and the metrics before the checkpoints that depend on them. A push that was cut short leaves
an older state of the run. Bakeoffs are not copied.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import SUMS, publish_file, publish_folder, sha256_of
from mugrpo.disk.run_dir import RunDir
from mugrpo.processes.messages import printable

_MANIFEST = "manifest.json"
_LOOSE = ("samples", "nonfinite")  # folders of files that no manifest lists
_FOLDERS = ("stages/", "evaluations/", "checkpoints/", *(f"{folder}/" for folder in _LOOSE))

Say = Callable[[str], None]
Check = Callable[[], None]


class _Store:
    """The objects below a URL, by their names relative to it.

    Raises UsageError if fsspec cannot use the URL.
    """

    def __init__(self, url: str) -> None:
        import fsspec
        import fsspec.implementations.local

        try:
            self._system, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise UsageError(
                f"{url} cannot be used ({error}); check it, or install the package that it needs"
            ) from None
        local = fsspec.implementations.local.LocalFileSystem
        self._local = isinstance(self._system, local)  # a folder, where a file may be cut short

    def read(self, name: str) -> bytes | None:
        """Return an object's bytes, or None if it does not exist."""
        try:
            data: bytes = self._system.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return data

    def fetch(self, name: str, path: Path) -> None:
        """Write an object into the file `path`. Raises FileNotFoundError if it does not exist."""
        self._system.get_file(f"{self._root}/{name}", str(path))

    def write(self, name: str, data: bytes) -> None:
        """Write `data` as an object."""
        path = self._place(name)
        if self._local:
            with publish_file(Path(path)) as file:
                file.write(data)
        else:
            self._system.pipe_file(path, data)

    def put(self, name: str, source: Path) -> None:
        """Write the contents of the file `source` as an object."""
        path = self._place(name)
        if self._local:
            with publish_file(Path(path)) as file, open(source, "rb") as content:
                shutil.copyfileobj(content, file)
        else:
            self._system.put_file(str(source), path)

    def remove(self, name: str) -> None:
        self._system.rm_file(f"{self._root}/{name}")

    def names(self) -> list[str]:
        """Return the names of all objects, in order."""
        with suppress(FileNotFoundError):
            self._system.invalidate_cache()
            paths = self._system.find(self._root)
            prefix = self._system._strip_protocol(self._root).rstrip("/") + "/"
            return sorted(path.removeprefix(prefix) for path in paths)
        return []

    def _place(self, name: str) -> str:
        """Return the path of an object, in a folder that exists."""
        path = f"{self._root}/{name}"
        self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
        return path


def push(run_dir: RunDir, url: str, say: Say = lambda _: None, check: Check = lambda: None) -> int:
    """Make the copy at `url` match what the run has published.

    Returns the number of objects written. The run may continue meanwhile. `check` is called between
    objects and may raise to stop. Raises UsageError if the folder is not a run, RunStopped if a
    file does not match its checksum.
    """
    if run_dir.read_config() is None:
        raise UsageError(f"{run_dir.root} is not a run; name a run's directory")
    copy = _Push(run_dir, _Store(url), check)
    copy.remove_outdated()
    for path in (run_dir.config, run_dir.origin):
        copy.renew(path)
    for manifest, text in copy.manifests.items():
        copy.put_shards(manifest, text)
    for folder in _LOOSE:
        for path in sorted((run_dir.root / folder).glob("*.json")):
            copy.renew(path)
    copy.renew(run_dir.metrics)
    for checkpoint, seal in copy.seals.items():
        copy.put_checkpoint(checkpoint, seal)
    copy.remove_old_checkpoints()
    removed = f", {copy.removed} removed" if copy.removed else ""
    say(f"{copy.written} objects written to {url}{removed}")
    return copy.written


class _Push:
    """One push of a run to a store, with counts of the objects that it writes and removes."""

    def __init__(self, run_dir: RunDir, store: _Store, check: Check) -> None:
        self._root = run_dir.root
        self._store = store
        self._check = check
        self.written = self.removed = 0
        kinds = [folder for folder, _ in run_dir.shard_folders()]
        kinds += [f for e in run_dir.evaluation_folders() for f in sorted(e.iterdir())]
        manifests = [folder / _MANIFEST for folder in kinds if (folder / _MANIFEST).is_file()]
        self.manifests = {manifest: manifest.read_bytes() for manifest in manifests}
        self.seals = dict(_seals(run_dir))

    def remove_outdated(self) -> None:
        """Remove from the copy what the run has changed or lost, except older checkpoints."""
        names = self._store.names()
        manifests = {self._name(path): text for path, text in self.manifests.items()}
        for name in [n for n in names if n.endswith(f"/{_MANIFEST}")]:
            theirs = json.loads(self._store.read(name) or b"{}")
            ours = json.loads(manifests.get(name, b'{"shards": {}}'))["shards"]
            same = {n: entry for n, entry in theirs["shards"].items() if ours.get(n) == entry}
            if not same:
                self._remove(name)
            elif same != theirs["shards"]:
                self._write(name, json.dumps({**theirs, "shards": same}).encode())
        newest = max((self._name(folder) for folder in self.seals), default="")
        seals = {self._name(folder / SUMS): seal for folder, seal in self.seals.items()}
        for name in [n for n in names if n.endswith(f"/{SUMS}")]:
            older = name.rpartition("/")[0] < newest
            if self._store.read(name) != seals.get(name) and not (older and name not in seals):
                self._remove(name)
        listed = self._listed()
        for name in names:
            if name.startswith(_FOLDERS) and name not in listed and not self._old(name):
                with suppress(FileNotFoundError):  # a manifest or a seal, removed above
                    self._remove(name)

    def remove_old_checkpoints(self) -> None:
        """Remove the checkpoints that the run no longer has, once newer ones are in the copy."""
        outdated = [name for name in self._store.names() if self._old(name)]
        for name in sorted(outdated, key=lambda name: not name.endswith(f"/{SUMS}")):  # seals first
            self._remove(name)

    def renew(self, path: Path) -> None:
        """Write a file that no manifest lists, if the run has it and the copy differs."""
        if path.is_file() and self._store.read(self._name(path)) != (data := path.read_bytes()):
            self._write(self._name(path), data)

    def put_shards(self, manifest: Path, text: bytes) -> None:
        """Write the shards of a manifest that the copy lacks, then the manifest."""
        stored = self._store.read(self._name(manifest))
        known = _shards_of(stored)
        for name, sha256 in _shards_of(text).items():
            if known.get(name) != sha256:
                self._put_checked(manifest.with_name(name), sha256)
        if stored != text:
            self._write(self._name(manifest), text)

    def put_checkpoint(self, folder: Path, seal: bytes) -> None:
        """Write a checkpoint's files, then its seal. Skip it if the run removes it meanwhile."""
        if self._store.read(self._name(folder / SUMS)) == seal:
            return
        with suppress(FileNotFoundError):
            for name, sha256 in json.loads(seal).items():
                self._put_checked(folder / name, sha256)
            self._write(self._name(folder / SUMS), seal)

    def _listed(self) -> set[str]:
        """Return every object below the run's folders that the copy has after the push."""
        listed = {self._name(manifest) for manifest in self.manifests}
        for manifest, text in self.manifests.items():
            listed |= {self._name(manifest.with_name(name)) for name in _shards_of(text)}
        for folder, seal in self.seals.items():
            listed |= {self._name(folder / name) for name in (*json.loads(seal), SUMS)}
        loose = (p for folder in _LOOSE for p in (self._root / folder).glob("*.json"))
        return listed | {self._name(path) for path in loose}

    def _old(self, name: str) -> bool:
        """Return whether an object belongs to a removed checkpoint, older than the run's newest."""
        folder = "/".join(name.split("/")[:2])
        ours = {self._name(folder) for folder in self.seals}
        if not name.startswith("checkpoints/") or folder in ours:
            return False
        return folder < max(ours, default="")

    def _put_checked(self, path: Path, sha256: str) -> None:
        """Write a file. Raises RunStopped if it does not match its checksum."""
        self._check()
        if sha256_of(path) != sha256:
            raise RunStopped(
                f"{path} does not match its checksum: if it was replaced meanwhile, push again; if "
                f"it is damaged, run `mugrpo repair {self._root}`"
            )
        self._store.put(self._name(path), path)
        self.written += 1

    def _write(self, name: str, data: bytes) -> None:
        self._check()
        self._store.write(name, data)
        self.written += 1

    def _remove(self, name: str) -> None:
        self._store.remove(name)
        self.removed += 1

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))


def pull(url: str, run_dir: RunDir, say: Say = lambda _: None, check: Check = lambda: None) -> None:
    """Restore a run from its copy at `url`, in a new directory.

    Raises UsageError if there is no copy or the directory exists, RunStopped if an object is
    missing or does not match its checksum.
    """
    store, root = _Store(url), run_dir.root
    if root.exists():
        raise UsageError(f"{root} exists already; name a new directory")
    names = store.names()
    _refuse_odd(names, url)
    if run_dir.config.name not in names:
        raise UsageError(f"{url} holds no run (it has no {run_dir.config.name})")
    top_level = {run_dir.config.name, run_dir.origin.name, run_dir.metrics.name}
    plain = [n for n in names if n in top_level or n.startswith(tuple(f"{f}/" for f in _LOOSE))]
    lists = {n: store.read(n) or b"{}" for n in names if n.rpartition("/")[2] in (_MANIFEST, SUMS)}
    sums: dict[str, str] = {}
    for name, text in lists.items():
        folder, _, leaf = name.rpartition("/")
        listed = _shards_of(text) if leaf == _MANIFEST else dict(json.loads(text))
        sums |= {f"{folder}/{file}": sha256 for file, sha256 in listed.items()}
    _refuse_odd(sums, url)
    with publish_folder(root) as unfinished:
        for name in sorted({*plain, *lists, *sums}):
            check()
            path = unfinished / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name in lists:
                path.write_bytes(lists[name])
                continue
            with suppress(FileNotFoundError):
                store.fetch(name, path)
            if not path.exists() or sums.get(name) not in (None, sha256_of(path)):
                raise RunStopped(f"{url}/{name} is missing or does not match its checksum")
    say(f"{root}: resume with `mugrpo train {root}`")


def _refuse_odd(names: Iterable[str], url: str) -> None:
    """Raise UsageError if a name might lead outside the run's directory on some system."""
    for name in names:
        parts = name.split("/")
        if "\\" in name or ":" in name or "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
            raise UsageError(
                f"{url} has an object named {printable(name)}, which is not part of any run; "
                "nothing was written. Pull from a store that you trust"
            )


def _seals(run_dir: RunDir) -> Iterator[tuple[Path, bytes]]:
    """Yield the run's checkpoints, ascending, with their seals. Skip any removed meanwhile."""
    for update in run_dir.checkpoint_updates():
        with suppress(FileNotFoundError):
            yield run_dir.checkpoint(update), (run_dir.checkpoint(update) / SUMS).read_bytes()


def _shards_of(manifest: bytes | None) -> dict[str, str]:
    """Return name -> checksum of the shards that a manifest lists."""
    shards: dict[str, Any] = json.loads(manifest)["shards"] if manifest else {}
    return {f"shard-{int(n):05d}.parquet": entry["sha256"] for n, entry in shards.items()}
