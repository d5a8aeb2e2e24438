"""Check every checksum of a run; what is bad is set aside, so that `train` makes it again."""

from __future__ import annotations

from collections.abc import Callable

from mugrpo.run_dir import RunDir, sealed_folder_fault, set_aside
from mugrpo.shards import ShardSet


def repair(run_dir: RunDir, say: Callable[[str], None]) -> int:
    """Returns how many shards and checkpoints were set aside.

    A bad shard leaves its manifest and its file gets the ending `.bad`; a bad checkpoint's folder
    likewise. Scores of a bad rollout shard are made again with it. Files that no manifest lists
    are named and left.
    """
    bad = 0
    for folder, kind in run_dir.shard_folders():
        shards = ShardSet(folder, kind)
        for stranger in shards.strangers():
            say(f"{stranger} is not in its manifest; it is not read")
        for shard in shards.numbers():
            if fault := shards.fault(shard):
                path = shards.path(shard)
                shards.forget(shard)
                if path.exists():
                    set_aside(path)
                say(f"{path} {fault}; it will be made again")
                bad += 1
    for update in run_dir.checkpoint_updates():
        folder = run_dir.checkpoint(update)
        if fault := sealed_folder_fault(folder):
            set_aside(folder)
            say(f"{folder} {fault}; an earlier one will be used")
            bad += 1
    return bad
