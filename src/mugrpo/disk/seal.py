"""What a checkpoint says of its run: the config, the metrics so far, the shards it was trained on.

It is part of the checkpoint's stages.json, which the checkpoint's checksums cover. So a number that
was changed is found even if the checksum in its own file was made to fit. A file may legally differ
from the newest seal in three ways: config.json and metrics.jsonl name the seals that a change which
a run accepted, or a repair, has overruled (`replaces`), and a missing shard is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.metrics import read_metrics
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet

REPAIR = "repair"  # the kind of a metrics line after which lines are lost
_KINDS = ("rollouts", "scores", "plan")

Mark = dict[str, Any]  # {"size": bytes, "sha256": their hash}: a file that only grows, so far


def seal_of(run_dir: RunDir, stage: int) -> dict[str, Any]:
    """Return what a checkpoint in `stage` seals. The metrics are durable then."""
    with open(run_dir.metrics, "ab") as file:
        os.fsync(file.fileno())
    sets = {kind: ShardSet(run_dir.shards(stage, kind), kind) for kind in _KINDS}
    return {
        "config": json.loads(run_dir.config.read_bytes()),
        "metrics": mark_of(run_dir.metrics.read_bytes()),
        "stage": stage,
        "shards": {
            kind: {str(n): _known(shards.entry(n)) for n in shards.numbers()}
            for kind, shards in sets.items()
        },
    }


def require_metrics(run_dir: RunDir) -> None:
    """Raise RunStopped if metrics.jsonl is not what the newest checkpoint has sealed.

    After a repair, what the file had before its line "repair" counts instead.
    """
    marks, data = _marks(run_dir), _metrics(run_dir)
    if not marks or _fits(data, marks[-1]):
        return
    lines = read_metrics(run_dir.metrics) if run_dir.metrics.is_file() else ()
    repairs = (line for line in lines if line["kind"] == REPAIR)
    newest = marks[-1]["sha256"]
    if not any(newest in line["replaces"] and _fits(data, line["kept"]) for line in repairs):
        raise RunStopped(
            f"{run_dir.metrics} is not what {_newest(run_dir)} was written after; `mugrpo repair "
            f"{run_dir.root}` keeps the lines that a checkpoint confirms"
        )


def unsealed_lines(run_dir: RunDir) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl after those that the newest checkpoint has sealed."""
    marks, data = _marks(run_dir), _metrics(run_dir)
    sealed = marks[-1]["size"] if marks and _fits(data, marks[-1]) else 0
    return list(read_metrics(run_dir.metrics))[data[:sealed].count(b"\n") :]


def confirmed(run_dir: RunDir) -> bytes:
    """Return the longest beginning of metrics.jsonl that a checkpoint confirms."""
    data = _metrics(run_dir)
    known = (data[: mark["size"]] for mark in _marks(run_dir) if _fits(data, mark))
    return max(known, key=len, default=b"")


def overruled(run_dir: RunDir, kept: bytes) -> dict[str, Any]:
    """Return the line "repair" that follows the lines `kept`, and names the marks that miss more.

    It makes them count no longer, and says in the file itself that lines are lost.
    """
    return {
        "kind": REPAIR,
        "update": max(run_dir.checkpoint_updates(), default=0),
        "kept": mark_of(kept),
        "replaces": [mark["sha256"] for mark in _marks(run_dir) if not _fits(kept, mark)],
    }


def changed_shards(run_dir: RunDir, stage: int) -> Iterator[str]:
    """Yield a sentence for each shard of `stage` that the newest checkpoint knows otherwise.

    Yield none if that is a checkpoint of another stage. A stage that is over may be scored again.
    """
    updates = run_dir.checkpoint_updates()
    seal = run_dir.sealed(updates[-1]) if updates else {}
    sealed: dict[str, Any] = seal.get("shards", {}) if seal.get("stage") == stage else {}
    for kind, sums in sealed.items():
        shards = ShardSet(run_dir.shards(stage, kind), kind)
        for number in shards.numbers():
            now, then = _known(shards.entry(number)), sums.get(str(number))
            # Shards of a stage that overlaps come later, and another judge scores again.
            if then and now != then and now["judge"] == then["judge"]:
                newest = _newest(run_dir)
                yield f"{shards.path(number)} is not the one that {newest} was trained on"


def _newest(run_dir: RunDir) -> str:
    return run_dir.checkpoint(run_dir.checkpoint_updates()[-1]).name


def _metrics(run_dir: RunDir) -> bytes:
    return run_dir.metrics.read_bytes() if run_dir.metrics.is_file() else b""


def mark_of(data: bytes) -> Mark:
    """Return the mark of a file with the content `data`."""
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _fits(data: bytes, mark: Mark) -> bool:
    """Return whether a file that only grows, with the content `data` now, was as `mark` says."""
    return mark_of(data[: mark["size"]]) == mark


def _marks(run_dir: RunDir) -> list[Mark]:
    """Return the marks of metrics.jsonl in all checkpoints that say something."""
    sealed = map(run_dir.sealed, run_dir.checkpoint_updates())
    return [seal["metrics"] for seal in sealed if "metrics" in seal]


def _known(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells a shard from one that was made again."""
    return {"sha256": entry["sha256"], "judge": entry.get("judge")}
