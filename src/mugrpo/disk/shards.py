"""Records as parquet shards with checksums: what the steps of a stage exchange.

A folder of shards holds `shard-00000.parquet` and its entry, `shard-00000.json`, and so on:

    {"kind": "rollouts", "shard": {"rows": 2048, "bytes": 91234, "sha256": "...", ...},
     "sha256": "..."}

A shard exists if its entry does. An entry each, and no list of all, lets processes on several
machines publish side by side. Lists are ragged (no padding on disk). Rollouts made elsewhere can be
trained on if they have the columns of ROLLOUT_SCHEMA, with those of TURN_SCHEMA if they have turns,
and an entry.
"""

import json
import os
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import (
    publish_file,
    publish_json,
    read_checked,
    sha256_of,
    with_checksum,
)
from mugrpo.disk.records import FinishReason, Rollout, Score, Status, outcome_from_text

ROLLOUT_SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("occurrence", pa.int32()),
        ("sample", pa.int32()),
        ("seed", pa.uint64()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("behavior_logprobs", pa.list_(pa.float32())),
        ("finish_reason", pa.string()),
        ("temperature", pa.float64()),
        ("policy_step", pa.int64()),
    ]
)
# A shard has these columns too if a rollout of it has turns.
TURN_SCHEMA = pa.schema(
    [
        ("loss_mask", pa.list_(pa.bool_())),
        ("turns", pa.list_(pa.int32())),
        ("environment", pa.string()),
    ]
)
SCORE_SCHEMA = pa.schema(
    [("status", pa.string()), ("reward", pa.float64()), ("parts", pa.string())]
)
LOGPROB_SCHEMA = pa.schema([("logprobs", pa.list_(pa.float32()))])

_FIELDS = (("rows", int), ("bytes", int), ("sha256", str))  # of each entry
_ENTRY = re.compile(r"shard-(\d{5,})\.json")
_ROW_GROUP = 256  # rows that are decoded together, even to read one of them
_CACHED = 4  # row groups of a reader


class ShardSet:
    """The shards in a folder, all of one kind: "rollouts", "scores", or logprobs.

    It looks for shards on disk, so it sees those of other processes, too. Methods raise RunStopped
    if an entry is unreadable, UsageError if it is of another kind.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self._entries: dict[int, dict[str, Any]] = {}  # as far as they have been read
        self._verified: set[int] = set()

    def __contains__(self, shard: int) -> bool:
        return shard in self._entries or os.path.lexists(self.entry_path(shard))

    def numbers(self) -> list[int]:
        """Return the numbers of the published shards, in ascending order."""
        names: list[str] = []
        with suppress(FileNotFoundError):
            names = os.listdir(self.folder)
        return sorted(int(found[1]) for found in map(_ENTRY.fullmatch, names) if found)

    def entry(self, shard: int, *, fresh: bool = False) -> dict[str, Any]:
        """Return the entry of `shard`: rows, bytes, sha256, and the writer's notes.

        With `fresh`, read it again: another process may have made the shard again.
        """
        if fresh or shard not in self._entries:
            self._entries[shard] = self._read(self.entry_path(shard))
        return self._entries[shard]

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries of all published shards, in order."""
        return [self.entry(shard) for shard in self.numbers()]

    def path(self, shard: int) -> Path:
        """Return where the file of `shard` is, or would be."""
        return self.folder / f"shard-{shard:05d}.parquet"

    def entry_path(self, shard: int) -> Path:
        """Return the path of the entry of `shard`, which may not exist."""
        return self.folder / f"shard-{shard:05d}.json"

    def write(self, shard: int, table: pa.Table, **notes: Any) -> None:
        """Publish `table` as `shard`, then its entry together with `notes`."""
        path = self.path(shard)
        self._verified.discard(shard)
        lists = [field for field in table.schema if pa.types.is_list(field.type)]
        numbers = [field.name for field in lists if not pa.types.is_boolean(field.type.value_type)]
        others = set(table.column_names) - {field.name for field in lists}
        with publish_file(path) as file:
            pq.write_table(
                table,
                file,
                compression="zstd",
                row_group_size=_ROW_GROUP,
                use_dictionary=[name for name in table.column_names if name in others],
                column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in numbers},
                write_page_checksum=True,
            )
            file.flush()  # of what is written here, whoever else may publish the shard
            known = {"bytes": file.tell(), "sha256": sha256_of(Path(file.name))}
        entry = {"rows": table.num_rows, **known, **notes}
        publish_json(self.entry_path(shard), with_checksum({"kind": self.kind, "shard": entry}))
        self._entries[shard] = entry

    def forget(self, shard: int) -> None:
        """Remove the entry of `shard`. The next run regenerates it."""
        self.entry_path(shard).unlink(missing_ok=True)
        self._entries.pop(shard, None)
        self._verified.discard(shard)

    def fault(self, shard: int) -> str | None:
        """Return what is wrong with the file of a published shard, or None."""
        path, entry = self.path(shard), self.entry(shard)
        if not path.is_file():
            return "is missing"
        if path.stat().st_size != entry["bytes"]:
            return f"has {path.stat().st_size} bytes instead of {entry['bytes']}"
        if sha256_of(path) != entry["sha256"]:
            return "does not match its checksum"
        return None

    def open(self, shard: int) -> pq.ParquetFile:
        """Return the verified file of `shard`. Raises RunStopped if it is missing or damaged."""
        if shard not in self._verified:
            if shard not in self:
                raise RunStopped(f"{self.path(shard)} has no entry; it has to be made again")
            if fault := self.fault(shard):
                raise RunStopped(
                    f"{self.path(shard)} {fault}; run `mugrpo repair RUN` to have it made again"
                )
            self._verified.add(shard)
        return pq.ParquetFile(self.path(shard))

    def _read(self, path: Path) -> dict[str, Any]:
        stored = read_checked(path)
        if stored.get("kind") != self.kind:
            raise UsageError(f"{path} is of {stored.get('kind')}, not {self.kind}")
        entry = stored.get("shard")
        if not isinstance(entry, dict) or any(type(entry.get(n)) is not t for n, t in _FIELDS):
            raise RunStopped(
                f"{path} is no entry of a shard, though its checksum fits: it needs rows, bytes "
                "and sha256; `mugrpo repair RUN` sets it aside"
            )
        return entry


class RowReader:
    """A reader of a ShardSet's rows by (shard, row), with at most a few row groups in memory."""

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards
        self._file: tuple[int, pq.ParquetFile] | None = None
        self._starts: dict[int, list[int]] = {}  # of each shard: the first row of each row group
        self._cache: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def rows(self, places: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return the row of each (shard, row) in `places`, in that order: {column: value}."""
        return [self.row(shard, row) for shard, row in places]

    def row(self, shard: int, row: int) -> dict[str, Any]:
        """Return a row: {column: value}. Raises RunStopped if its shard is missing or damaged."""
        if shard not in self._starts:
            groups = self._opened(shard).metadata
            sizes = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
            self._starts[shard] = list(accumulate(sizes[:-1], initial=0))
        number = bisect(self._starts[shard], row) - 1
        if (shard, number) not in self._cache:
            if len(self._cache) == _CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache[shard, number] = rows_of(self._opened(shard).read_row_group(number))
        return self._cache[shard, number][row - self._starts[shard][number]]

    def _opened(self, shard: int) -> pq.ParquetFile:
        if self._file is None or self._file[0] != shard:
            self._file = (shard, self._shards.open(shard))
        return self._file[1]


def write_rollouts(shards: ShardSet, shard: int, rollouts: Sequence[Rollout], **notes: Any) -> None:
    """Publish `rollouts` as `shard`. Raises ValueError unless each has ids and their logprobs."""
    for r in rollouts:
        if fault := r.fault:
            raise ValueError(f"rollout {r.problem_id}/{r.occurrence}/{r.sample}: {fault}")
    turns = TURN_SCHEMA if any(r.turns is not None for r in rollouts) else ()
    schema = pa.schema([*ROLLOUT_SCHEMA, *turns])
    columns = {name: [getattr(r, name) for r in rollouts] for name in schema.names}
    if turns:
        columns["environment"] = [e and json.dumps(asdict(e)) for e in columns["environment"]]
    tokens = sum(len(r.response_ids) for r in rollouts)
    table = pa.Table.from_pydict(columns, schema=schema)
    shards.write(shard, table, tokens=tokens, **notes)


def read_rollouts(shards: ShardSet, shard: int) -> Iterator[Rollout]:
    """Yield the rollouts of `shard`, by row groups. Raises RunStopped if it is gone or damaged."""
    file = shards.open(shard)
    for number in range(file.num_row_groups):
        for row in rows_of(file.read_row_group(number)):
            yield rollout_from_row(row)


def rollout_from_row(row: dict[str, Any]) -> Rollout:
    typed = {
        "finish_reason": FinishReason(row["finish_reason"]),
        "environment": outcome_from_text(row.get("environment")),
    }
    return Rollout(**{**row, **typed})


def write_scores(shards: ShardSet, shard: int, scores: Sequence[Score], **notes: Any) -> None:
    """Publish `scores`: one for each rollout of the rollout shard with the same number."""
    columns = {
        "status": [s.status.value for s in scores],
        "reward": [s.reward for s in scores],
        "parts": [json.dumps(s.parts) for s in scores],
    }
    shards.write(shard, pa.Table.from_pydict(columns, schema=SCORE_SCHEMA), **notes)


def write_logprobs(
    shards: ShardSet, shard: int, logprobs: Sequence[NDArray[np.float32]], **notes: Any
) -> None:
    """Publish the logprobs of rollouts' responses, one row per rollout."""
    table = pa.Table.from_pydict({"logprobs": logprobs}, schema=LOGPROB_SCHEMA)
    shards.write(shard, table, **notes)


def read_logprobs(shards: ShardSet, shard: int) -> list[NDArray[np.float32]]:
    return [row["logprobs"] for row in rows_of(shards.open(shard).read())]


def read_scores(shards: ShardSet, shard: int) -> list[Score]:
    return [score_from_row(row) for row in shards.open(shard).read().to_pylist()]


def score_from_row(row: dict[str, Any]) -> Score:
    return Score(Status(row["status"]), row["reward"], json.loads(row["parts"]))


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of `table`. Lists become numpy arrays: views of one buffer per column."""
    columns: dict[str, Sequence[Any]] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if pa.types.is_list(column.type):
            offsets, valid = column.offsets.to_numpy(), column.is_valid().to_pylist()
            flat = column.values.to_numpy(zero_copy_only=False)
            parts = zip(pairwise(offsets), valid, strict=True)
            columns[name] = [flat[a:b] if listed else None for (a, b), listed in parts]
        else:
            columns[name] = column.to_pylist()
    every = zip(*columns.values(), strict=True)
    return [dict(zip(columns, values, strict=True)) for values in every]


class Place(NamedTuple):
    """Where a rollout is: its shard, and its row there."""

    shard: int
    row: int
