"""Rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa


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
