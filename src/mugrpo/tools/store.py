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
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import SUMS, publish_folder, sha256_of
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.seal import require_metrics
from mugrpo.extensions.exchange.foreign import HELD_OUT, PROBLEMS
from mugrpo.tools.objects import Store, refuse_odd
from mugrpo.tools.push_lock import only_push

_MANIFEST = "manifest.json"
_LONGEST_LIST = 16 << 20  # bytes of a manifest or a seal
_LOOSE = ("samples", "nonfinite")  # folders of files that no manifest lists
_FOLDERS = ("stages/", "evaluations/", "checkpoints/", *(f"{folder}/" for folder in _LOOSE))

Say = Callable[[str], None]
Check = Callable[[], None]


def push(run_dir: RunDir, url: str, say: Say = lambda _: None, check: Check = lambda: None) -> int:
    """Make the copy at `url` match what the run has published.

    Returns the number of objects written. The run may continue meanwhile. `check` is called between
    objects and may raise to stop. Raises UsageError if the folder is not a run, if the copy is
    another run's, or if another process pushes to it, and RunStopped if a file does not match its
    checksum or the run's journal.
    """
    config, store = run_dir.read_config(), Store(url)
    if config is None:
        raise UsageError(f"{run_dir.root} is not a run; name a run's directory")
    require_metrics(run_dir)
    with only_push(store) as renew:
        _require_same_run(config, store, run_dir)

        def checked() -> None:
            check()
            renew()

        copy = _Push(run_dir, store, checked)
        copy.push()
    removed = f", {copy.removed} removed" if copy.removed else ""
    say(f"{copy.written} objects written to {url}{removed}")
    return copy.written


def _require_same_run(config: Mapping[str, Any], store: Store, run_dir: RunDir) -> None:
    """Raise UsageError if the copy is of a run with another id. Runs of old versions have none."""
    if (text := store.read(run_dir.config.name)) is None:
        return
    try:
        identity = json.loads(text).get("id")
    except (ValueError, AttributeError, RecursionError):
        identity = "damaged"
    if identity != config.get("id"):
        raise UsageError(
            f"{store.url} holds the copy of another run than {run_dir.root} (its config.json has "
            "another id); push to another place, or remove that copy first"
        )


class _Push:
    """One push of a run to a store, with counts of the objects that it writes and removes."""

    def __init__(self, run_dir: RunDir, store: Store, check: Check) -> None:
        self._run_dir = run_dir
        self._root = run_dir.root
        self._store = store
        self._check = check
        self.written = self.removed = 0
        kinds = [folder for folder, _ in run_dir.shard_folders()]
        kinds += [f for e in run_dir.evaluation_folders() for f in sorted(e.iterdir())]
        manifests = [folder / _MANIFEST for folder in kinds if (folder / _MANIFEST).is_file()]
        self.manifests = {manifest: manifest.read_bytes() for manifest in manifests}
        self.seals = dict(_seals(run_dir))

    def push(self) -> None:
        """Make the copy match the run, in the order that keeps it complete."""
        self.remove_outdated()
        imported = (self._root / name for name in (PROBLEMS, HELD_OUT))
        for path in (self._run_dir.config, self._run_dir.origin, *imported):
            self.renew(path)
        for manifest, text in self.manifests.items():
            self.put_shards(manifest, text)
        for folder in _LOOSE:
            for path in sorted((self._root / folder).glob("*.json")):
                self.renew(path)
        self.renew(self._run_dir.metrics)
        for checkpoint, seal in self.seals.items():
            self.put_checkpoint(checkpoint, seal)
        self.remove_old_checkpoints()

    def remove_outdated(self) -> None:
        """Remove from the copy what the run has changed or lost, except older checkpoints."""
        names = self._store.sizes()
        manifests = {self._name(path): text for path, text in self.manifests.items()}
        for name in [n for n in names if n.endswith(f"/{_MANIFEST}")]:
            text = self._store.read(name) or b""
            ours = json.loads(manifests.get(name, b'{"shards": {}}'))["shards"]
            theirs = json.loads(text) if _listed_in(name, text) is not None else {"shards": {}}
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
        outdated = [name for name in self._store.sizes() if self._old(name)]
        for name in sorted(outdated, key=lambda name: not name.endswith(f"/{SUMS}")):  # seals first
            self._remove(name)

    def renew(self, path: Path) -> None:
        """Write a file that no manifest lists, if the run has it and the copy differs."""
        if path.is_file() and self._store.read(self._name(path)) != (data := path.read_bytes()):
            self._write(self._name(path), data)

    def put_shards(self, manifest: Path, text: bytes) -> None:
        """Write the shards of a manifest that the copy lacks, then the manifest."""
        stored = self._store.read(self._name(manifest))
        known = _listed_in(self._name(manifest), stored or b"") or {}
        for name, sha256 in _shards_of(text).items():
            shard = manifest.with_name(name)
            if not shard.exists():
                raise RunStopped(
                    f"{shard} is gone: if it was replaced meanwhile, push again; if it is lost, "
                    f"run `mugrpo repair {self._root}`"
                )
            if known.get(name) != sha256:
                self._put_checked(shard, sha256)
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
    store, root = Store(url), run_dir.root
    if root.exists():
        raise UsageError(f"{root} exists already; name a new directory")
    sizes = store.sizes()
    refuse_odd(sizes, url)
    if run_dir.config.name not in sizes:
        raise UsageError(f"{url} holds no run (it has no {run_dir.config.name})")
    files = (run_dir.config, run_dir.origin, run_dir.metrics)
    top_level = {*(path.name for path in files), PROBLEMS, HELD_OUT}
    plain = [n for n in sizes if n in top_level or n.startswith(tuple(f"{f}/" for f in _LOOSE))]
    lists = [n for n in sizes if n.rpartition("/")[2] in (_MANIFEST, SUMS)]
    if large := [name for name in lists if sizes[name] > _LONGEST_LIST]:
        raise UsageError(f"{url}/{large[0]} has {sizes[large[0]]:,} bytes, too many for a list")
    texts = {name: store.read(name) or b"" for name in lists}
    sums: dict[str, str] = {}
    for name, text in texts.items():
        folder, listed = name.rpartition("/")[0], _listed_in(name, text)
        if listed is None:
            raise UsageError(f"{url}/{name} does not list files with their checksums; push again")
        sums |= {f"{folder}/{file}": sha256 for file, sha256 in listed.items()}
    wanted = sorted({*plain, *lists, *sums})
    refuse_odd(wanted, url)
    needed = sum(sizes.get(name, 0) for name in wanted)
    if needed > (free := _free_bytes(root)):
        raise UsageError(f"{url} has {needed:,} bytes, but {free:,} are free at {root}; make room")
    with publish_folder(root, replace=False) as unfinished:
        for name in wanted:
            check()
            path = unfinished / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name in texts:
                path.write_bytes(texts[name])
                continue
            with suppress(FileNotFoundError):
                store.fetch(name, path)
            if not path.exists() or sums.get(name) not in (None, sha256_of(path)):
                raise RunStopped(f"{url}/{name} is missing or does not match its checksum")
    say(f"{root}: resume with `mugrpo train {root}`")


def _listed_in(name: str, text: bytes) -> dict[str, str] | None:
    """Return file -> checksum of what the manifest or seal called `name` lists.

    Return None if its text is that of neither.
    """
    try:
        is_manifest = name.endswith(f"/{_MANIFEST}")
        listed = _shards_of(text) if is_manifest else dict(json.loads(text))
        good = all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in listed.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return listed if good else None


def _free_bytes(path: Path) -> int:
    """Return the free bytes of the disk that `path` will be on."""
    return shutil.disk_usage(next(p for p in path.absolute().parents if p.exists())).free


def _seals(run_dir: RunDir) -> Iterator[tuple[Path, bytes]]:
    """Yield the run's checkpoints, ascending, with their seals. Skip any removed meanwhile."""
    for update in run_dir.checkpoint_updates():
        with suppress(FileNotFoundError):
            yield run_dir.checkpoint(update), (run_dir.checkpoint(update) / SUMS).read_bytes()


def _shards_of(manifest: bytes) -> dict[str, str]:
    """Return name -> checksum of the shards that a manifest lists."""
    shards: dict[str, Any] = json.loads(manifest)["shards"]
    return {f"shard-{int(n):05d}.parquet": entry["sha256"] for n, entry in shards.items()}
