"""The batch plan of a stage: which rollouts each of its batches has.

A batch has whole groups, each with its rollouts side by side. Filters, refills and sampling choose
rows in the plan and never change a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mugrpo.disk.shards import ShardSet

PLAN_SCHEMA = pa.schema([(name, pa.int32()) for name in ("batch", "shard", "row")])


class Place(NamedTuple):
    """Where a rollout is: its shard, and its row there."""

    shard: int
    row: int


def write_plan(shards: ShardSet, batches: Sequence[Sequence[Place]], **notes: Any) -> None:
    """Publish the batch plan of a stage. Raises ValueError if a batch has no rows."""
    if not all(batches):
        raise ValueError("a batch of the plan has no rows: an update needs at least one group")
    flat = [(batch, *place) for batch, places in enumerate(batches) for place in places]
    columns = np.array(flat, np.int32).T
    shards.write(0, pa.Table.from_arrays(list(map(pa.array, columns)), schema=PLAN_SCHEMA), **notes)


def read_plan(shards: ShardSet) -> list[list[Place]]:
    """Return a stage's plan: for each batch, the places of its rollouts."""
    table = shards.open(0).read()
    rows = zip(*(table.column(name).to_pylist() for name in Place._fields), strict=True)
    places = [Place(*row) for row in rows]
    cuts = np.flatnonzero(np.diff(table.column("batch").to_numpy())) + 1
    return [places[start:end] for start, end in pairwise([0, *cuts.tolist(), len(places)])]
