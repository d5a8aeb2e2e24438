"""What parts cost a shared folder: `python benchmarks/parts.py`.

Counts the operations on files of parts that make and score all shards of a stage, with a tiny table
in place of rollouts. One process plays all parts, one after the other, so nobody waits for anybody.
Then it times `mugrpo status` with a live claim of each part. The counts do not depend on the
machine; the seconds do, and are a local disk's.
"""

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.publishing import publish_json, with_checksum
from mugrpo.disk.records import Part, Problem
from mugrpo.disk.run_dir import FORMAT, RunDir
from mugrpo.disk.shards import ShardSet
from mugrpo.processes.claims import Claims
from mugrpo.report.status import status
from mugrpo.rollouts.schedule import schedule_of
from mugrpo.run.stage import Stage
from mugrpo.stages.work import working

# what a file server is asked for; the functions of `os` that ask it
OPERATIONS = {
    "open": ("open",),
    "stat": ("stat", "lstat"),
    "rename": ("rename", "replace"),
    "remove": ("unlink", "remove"),
    "list": ("listdir", "scandir"),
    "touch": ("utime",),
    "fsync": ("fsync",),
}


def _asked(function: str) -> Callable[..., Any]:
    """Return a function of `os`, but none that waits for the disk."""
    return (lambda _: None) if function == "fsync" else getattr(os, function)


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count the operations in the block, by `open` too. Nothing waits for the disk."""
    found: Counter[str] = Counter()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counts(*given: Any, **named: Any) -> Any:
            found[name] += 1
            return call(*given, **named)

        return counts

    with (
        mock.patch.multiple(
            os,
            **{
                function: counted(
                    name, getattr(os, function) if name != "fsync" else lambda _: None
                )
                for name, functions in OPERATIONS.items()
                for function in functions
            },
        ),
        mock.patch("builtins.open", counted("open", open)),
    ):
        yield found


def stage_in(folder: Path, shards: int) -> Stage:
    """Return the first stage of a run that has so many shards, of one group each."""
    schedule = {"stages": 1, "batches_per_stage": shards, "problems_per_update": 1, "group_size": 2}
    options = {"schedule": {**schedule, "growth": 1.0}, "rollouts": {"shard_rollouts": 2}}
    config: RunConfig = build_config(options, "the benchmark")
    run = RunDir(folder)
    folder.mkdir()
    document = {"format": FORMAT, "config": json.loads(config.model_dump_json())}
    publish_json(run.config, with_checksum({**document, "provenance": {}, "id": ""}))
    problems = [Problem(str(number), "", "") for number in range(64)]
    return Stage(0, schedule_of(config, problems), run, config, "")


def make(folder: Path, shards: int, parts: int) -> Counter[str]:
    """Let all parts generate and score, one after the other. Return the operations."""
    whole = stage_in(folder, shards)
    run = SimpleNamespace(folder=SimpleNamespace(apart=True), check=lambda: None)
    table = pa.table({"seed": [1, 2]})
    with counting() as found:
        for kind in ("rollouts", "scores"):
            for number in range(parts):
                stage = Stage(0, whole.draws, whole.folder, whole.config, "")
                own = stage.shards(kind)
                with working(run, stage, kind, Part(number, parts)) as work:  # type: ignore[arg-type]
                    for free in work.rounds():
                        for shard in free:
                            notes = {}
                            if kind == "scores":
                                entry = stage.shards("rollouts").entry(shard)
                                notes = {"rollouts_sha256": entry["sha256"]}
                            own.write(shard, table, **notes, **work.about, tokens=2, seconds=1.0)
                            work.done(shard)
    return found


def status_seconds(folder: Path, parts: int) -> float:
    """Return the seconds of `status` while each part makes a shard again."""
    run = RunDir(folder)
    for number in range(parts):
        ShardSet(run.shards(0, "rollouts"), "rollouts").forget(number)
    claims = [Claims(run.shards(0, "rollouts"), part=f"{n}/{parts}") for n in range(parts)]
    for number, one in enumerate(claims):
        one.take(f"shard-{number:05d}")
    began = time.perf_counter()
    status(run)
    seconds = time.perf_counter() - began
    for one in claims:
        one.close()
    return seconds


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    cli = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    cli.add_argument("--shards", type=int, default=1024)
    cli.add_argument("--parts", type=int, nargs="+", default=[1, 64, 1024])
    options = cli.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for parts in options.parts:
            run = Path(folder) / f"run-{parts}"
            found = make(run, options.shards, parts)
            each = {name: found[name] / options.shards for name in OPERATIONS}
            seconds = status_seconds(run, parts)
            rows.append({"parts": parts, **each, "status_seconds": seconds})
            numbers = "  ".join(f"{name} {count:.2f}" for name, count in each.items())
            print(f"{parts:5d} parts, a shard: {numbers}   status {seconds:.2f} s", flush=True)
    return rows


if __name__ == "__main__":
    main()
