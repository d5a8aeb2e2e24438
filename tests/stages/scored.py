"""The scores of a run on disk, for the tests that score it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.runs import read_metrics

AGAIN = ("--stage", 0, "--again")

Files = dict[str, tuple[int, bytes]]


def files(run_dir: Path, kind: str, stage: int = 0) -> Files:
    """Return the modification time and the bytes of each of a stage's files of `kind`."""
    found = sorted((run_dir / "stages" / f"{stage:03d}" / kind).iterdir())
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def written(before: Files, after: Files) -> list[int]:
    """Return the numbers of the shards that were written in between, even with the same bytes."""
    assert before.keys() == after.keys()
    names = sorted(name for name in before if name.startswith("shard-"))
    return [n for n, name in enumerate(names) if after[name][0] > before[name][0]]


def entries(run_dir: Path, stage: int = 0) -> list[dict[str, Any]]:
    """Return the manifest's entries for a stage's shards of scores, in order."""
    path = run_dir / "stages" / f"{stage:03d}" / "scores" / "manifest.json"
    shards = json.loads(path.read_text())["shards"]
    return [shards[number] for number in sorted(shards)]


def judges(run_dir: Path, stage: int = 0) -> list[str]:
    return [entry["judge"] for entry in entries(run_dir, stage)]


def refreshes(run_dir: Path) -> list[dict[str, Any]]:
    """Return the last refresh line of each update."""
    lines = {line["update"]: line for line in read_metrics(run_dir) if line["kind"] == "refresh"}
    return list(lines.values())


def rewards(run_dir: Path) -> float:
    """Return the sum of the rewards by stage 0's manifest of scores."""
    return sum(entry["reward_sum"] for entry in entries(run_dir))
