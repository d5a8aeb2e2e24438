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
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.metrics import read_metrics
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet

REPAIR = "repair"  # the kind of a metrics line after which lines are lost
_KINDS = ("rollouts", "scores", "plan")


def seal_of(run_dir: RunDir, stage: int) -> dict[str, Any]:
    """Return what a checkpoint in `stage` seals. The metrics are durable then."""
    sets = {kind: ShardSet(run_dir.shards(stage, kind), kind) for kind in _KINDS}
    return {
        "config": json.loads(run_dir.config.read_bytes()),
        "metrics": mark_of(run_dir.metrics),
        "stage": stage,
        "shards": {
            kind: {str(n): _known(shards.entry(n)) for n in shards.numbers()}
            for kind, shards in sets.items()
        },
    }


def mark_of(path: Path) -> dict[str, Any]:
    """Return the length in bytes and the sha256 of a file that only grows."""
    with open(path, "ab+") as file:
        os.fsync(file.fileno())
        file.seek(0)
        data = file.read()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def fits(data: bytes, mark: Any) -> bool:
    """Return whether a file that only grows, with the content `data` now, was as `mark` says."""
    try:
        beginning = data[: mark["size"]]
        return bool(len(beginning) == mark["size"] and _sha256(beginning) == mark["sha256"])
    except (KeyError, TypeError):
        return False


def require_metrics(run_dir: RunDir) -> None:
    """Raise RunStopped if metrics.jsonl is not what the newest checkpoint has sealed.

    After a repair, what the file had before its line "repair" counts instead.
    """
    updates = run_dir.checkpoint_updates()
    mark = _mark(run_dir, updates[-1]) if updates else None
    data = run_dir.metrics.read_bytes() if run_dir.metrics.is_file() else b""
    if mark is None or fits(data, mark):
        return
    lines = read_metrics(run_dir.metrics) if run_dir.metrics.is_file() else ()
    if not any(_overrules(line, mark, data) for line in lines):
        raise RunStopped(
            f"{run_dir.metrics} is not what {run_dir.checkpoint(updates[-1]).name} was written "
            f"after; `mugrpo repair {run_dir.root}` keeps the lines that a checkpoint confirms"
        )


def unsealed_lines(run_dir: RunDir) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl after those that the newest checkpoint has sealed."""
    updates = run_dir.checkpoint_updates()
    mark = _mark(run_dir, updates[-1]) if updates else None
    lines = list(read_metrics(run_dir.metrics))
    if mark is None or not fits(data := run_dir.metrics.read_bytes(), mark):
        return lines
    return lines[data[: mark["size"]].count(b"\n") :]


def _overrules(line: dict[str, Any], mark: Any, data: bytes) -> bool:
    names = line.get("replaces")
    return (
        line["kind"] == REPAIR
        and isinstance(names, list)
        and mark["sha256"] in names
        and fits(data, line.get("kept"))
    )


def confirmed(run_dir: RunDir) -> bytes:
    """Return the longest beginning of metrics.jsonl that a checkpoint confirms."""
    data = run_dir.metrics.read_bytes() if run_dir.metrics.is_file() else b""
    known = (data[: mark["size"]] for mark in _marks(run_dir) if fits(data, mark))
    return max(known, key=len, default=b"")


def overruled(run_dir: RunDir, kept: bytes) -> dict[str, Any]:
    """Return the line "repair" that follows the lines `kept`, and names the marks that miss more.

    It makes them count no longer, and says in the file itself that lines are lost.
    """
    return {
        "kind": REPAIR,
        "update": max(run_dir.checkpoint_updates(), default=0),
        "kept": {"size": len(kept), "sha256": _sha256(kept)},
        "replaces": [mark["sha256"] for mark in _marks(run_dir) if not fits(kept, mark)],
    }


def _marks(run_dir: RunDir) -> list[dict[str, Any]]:
    """Return the marks of metrics.jsonl in all checkpoints."""
    return list(filter(None, (_mark(run_dir, u) for u in run_dir.checkpoint_updates())))


def _mark(run_dir: RunDir, update: int) -> dict[str, Any] | None:
    """Return the mark of metrics.jsonl in a checkpoint, or None if it is none that a run writes."""
    mark = run_dir.sealed(update).get("metrics")
    if not isinstance(mark, dict) or not isinstance(mark.get("sha256"), str):
        return None
    return mark if type(mark.get("size")) is int and mark["size"] >= 0 else None


def changed_shards(run_dir: RunDir, stage: int) -> Iterator[Path]:
    """Yield the shards of `stage` that differ from those the newest checkpoint was trained on.

    Yield none if that is a checkpoint of another stage. A stage that is over may be scored again.
    """
    updates = run_dir.checkpoint_updates()
    seal = run_dir.sealed(updates[-1]) if updates else {}
    sealed = seal.get("shards") if seal.get("stage") == stage else None
    for kind, sums in sealed.items() if isinstance(sealed, dict) else ():
        if kind not in _KINDS or not isinstance(sums, dict):
            continue
        shards = ShardSet(run_dir.shards(stage, kind), kind)
        for number in shards.numbers():
            now, then = _known(shards.entry(number)), sums.get(str(number))
            # Shards of a stage that overlaps come later, and another judge scores again.
            if isinstance(then, dict) and now != then and now["judge"] == then.get("judge"):
                yield shards.path(number)


def _known(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells a shard from one that was made again."""
    return {"sha256": entry["sha256"], "judge": entry.get("judge")}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
