"""Check every checksum of a run, and set damaged files aside for `train` to make them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import sealed_folder_fault, set_aside
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet


def repair(run_dir: RunDir, say: Callable[[str], None]) -> int:
    """Set damaged shards, manifests, checkpoints and evaluations aside. Return how many.

    A damaged file gets the ending `.bad`, and a damaged shard is removed from its manifest. If a
    rollout shard that is made again differs from the old one, it is also scored again. Files that
    no manifest lists are reported and left alone.
    """
    bad = sum(_bad_shards(folder, kind, say) for folder, kind in run_dir.shard_folders())
    newest = max(run_dir.checkpoint_updates(), default=0)
    for update in run_dir.checkpoint_updates():
        folder = run_dir.checkpoint(update)
        if fault := sealed_folder_fault(folder):
            set_aside(folder)
            after = "an earlier one will be used" if update == newest else "a later one is used"
            say(f"{folder} {fault}; {after}")
            bad += 1
    for folder in run_dir.evaluation_folders():
        if fault := _evaluation_fault(folder):
            set_aside(folder)
            say(f"{folder} {fault}; `mugrpo evaluate` makes it again")
            bad += 1
    return bad


def _bad_shards(folder: Path, kind: str, say: Callable[[str], None]) -> int:
    """Set the damaged shards of `folder` aside, or its manifest. Return how many."""
    try:
        shards = ShardSet(folder, kind)
    except RunStopped as error:
        set_aside(folder / "manifest.json")
        say(str(error))
        return 1
    for stranger in shards.strangers():
        say(f"{stranger} is not in its manifest, so it is ignored")
    bad = 0
    for shard in shards.numbers():
        if fault := shards.fault(shard):
            path = shards.path(shard)
            shards.forget(shard)
            if path.exists():
                set_aside(path)
            say(f"{path} {fault}; it will be made again")
            bad += 1
    return bad


def _evaluation_fault(folder: Path) -> str | None:
    """Return what is wrong with an evaluation, or None."""
    try:
        sets = [ShardSet(folder / kind, kind) for kind in ("rollouts", "scores")]
    except RunStopped as error:
        return str(error)
    faults = [f"has a {s.path(0).name} that {s.fault(0)}" for s in sets if 0 in s and s.fault(0)]
    return faults[0] if faults else None
