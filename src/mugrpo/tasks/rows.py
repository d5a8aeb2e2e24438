"""Rows of a data set, each with the place that error messages give."""

import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mugrpo.disk.errors import UsageError, absent
from mugrpo.processes.messages import first_line

Row = tuple[str, dict[str, Any]]  # (place such as "problems.jsonl, line 3", column -> value)

_TEXTS = (".jsonl", ".json", ".csv", ".tsv")  # which may end in .gz, too
FORMATS = (*_TEXTS, ".parquet")
_BATCH = 1000  # rows of a hub data set that are held at once


def read_rows(
    data: str,
    *,
    split: str | None = None,
    subset: str | None = None,
    revision: str | None = None,
    split_option: str = "split",
) -> list[Row]:
    """Return the rows of a local file or of a data set on the hub.

    Files end in .jsonl, .json (a list of objects), .csv or .tsv, also with .gz, or in .parquet.

    Raises UsageError if the data cannot be read or has no rows. The error names file and line if a
    row is at fault. `split_option` is the option of the task that names the split.
    """
    path = Path(data)
    named = {split_option: split, "subset": subset, "revision": revision}
    if not is_local(data):
        rows = list(_hub_rows(data, split or "train", subset, revision))
    elif file_format(path) is None:
        raise UsageError(f"{data} is not a file of problems; name one ({', '.join(FORMATS)})")
    elif options := [f"task.{name} = {value!r}" for name, value in named.items() if value]:
        raise UsageError(
            f"{data} is a local file, which has no split, subset or revision; leave out "
            f"{options[0]}, and name held-out problems of your own with task.eval_data"
        )
    else:
        rows = list(_file_rows(path))
    if not rows:
        raise UsageError(f"{data} has no rows")
    return rows


def is_local(data: str) -> bool:
    """Return whether `data` names a local file, existing or not, rather than a hub data set."""
    return os.path.exists(data) or file_format(Path(data)) is not None


def file_format(path: Path) -> str | None:
    """Return the ending that says how a file's rows are read, or None. `.gz` does not count."""
    *_, before, last = ["", "", *(suffix.lower() for suffix in path.suffixes)]
    name, known = (before, _TEXTS) if last == ".gz" else (last, FORMATS)
    return name if name in known else None


def _opened(path: Path) -> TextIO:
    opening: Any = gzip.open if path.suffix.lower() == ".gz" else open
    file: TextIO = opening(path, "rt", encoding="utf-8-sig", newline="")
    return file


def _file_rows(path: Path) -> Iterator[Row]:
    readers = {".jsonl": _jsonl_rows, ".json": _json_rows, ".parquet": _parquet_rows}
    try:
        yield from readers.get(file_format(path) or "", _table_rows)(path)
    except UsageError:  # a ValueError, which names its line already
        raise
    except FileNotFoundError:
        raise UsageError(f"{absent(path, 'data file')}; name the place where it is") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except (OSError, EOFError, ValueError, csv.Error, pa.ArrowException, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}") from None


def _jsonl_rows(path: Path) -> Iterator[Row]:
    with _opened(path) as file:
        text = file.read()
    # split at "\n" alone: JSON may hold other line breaks, such as U+2028
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UsageError(
                f'{path}, line {number} is not an object like {{"prompt": "...", "answer": "..."}}'
            )
        yield f"{path}, line {number}", row


def _json_rows(path: Path) -> Iterator[Row]:
    with _opened(path) as file:
        try:
            rows = json.load(file)
        except RecursionError as error:
            raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(
            f"{path} is not a list of objects; write one, or an object a line as {path.stem}.jsonl"
        )
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", row


def _table_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)
    with _opened(path) as file:
        reader = csv.reader(
            file, strict=True, delimiter="\t" if file_format(path) == ".tsv" else ","
        )
        header, line = next(reader, []), reader.line_num + 1
        for values in reader:
            place, line = f"{path}, line {line}", reader.line_num + 1
            if values and len(values) != len(header):
                raise UsageError(
                    f"{place} has {len(values)} fields, but the header names {len(header)} columns"
                )
            if values:
                yield place, dict(zip(header, values, strict=True))


def _parquet_rows(path: Path) -> Iterator[Row]:
    with pq.ParquetFile(path) as file:
        rows = _arrow_rows(file.iter_batches(), _restored(file.schema_arrow))
        for number, row in enumerate(rows, start=1):
            yield f"{path}, row {number}", row


def _hub_rows(data: str, split: str, subset: str | None, revision: str | None) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        raise UsageError(
            f"{data} is not a local file, and data sets on the hub need one more package: "
            "pip install 'mugrpo[hub]'"
        ) from None
    datasets.disable_progress_bars()
    try:
        table = datasets.load_dataset(data, subset, split=split, revision=revision)
    except Exception as error:  # of datasets, the hub or the network
        raise UsageError(
            f"{data} is not a local file, and as a data set on the hub it cannot be loaded "
            f"({type(error).__name__}: {first_line(error)}). Without a network, name a local file "
            "with --task.data; a gated data set needs `hf auth login` first"
        ) from None
    features = getattr(table, "features", None)
    kinds = _restored(features.arrow_schema) if features else {}
    if any("arrow.json" in str(kind) for kind in kinds.values()):
        # as in a file: datasets would read the text "007" as 7 and "null" as nothing
        rows = _arrow_rows(table.with_format("arrow").iter(_BATCH), kinds)
    else:
        rows = (_as_written(row, kinds) for row in table)
    for number, row in enumerate(rows, start=1):
        yield f"{data} [{split}], row {number}", row


def _arrow_rows(batches: Iterable[Any], kinds: dict[str, pa.DataType]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from (_as_written(row, kinds) for row in batch.to_pylist())


def _restored(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the columns whose cells are or hold floats of fewer than 64 bits, or JSON."""
    kinds = {field.name: field.type for field in schema}
    return {n: kind for n, kind in kinds.items() if re.search("float|arrow.json", str(kind))}


def _as_written(row: dict[str, Any], kinds: dict[str, pa.DataType]) -> dict[str, Any]:
    return {**row, **{name: _original(row[name], kind) for name, kind in kinds.items()}}


def _original(value: Any, kind: pa.DataType) -> Any:
    """Return a value with what JSON in it says, and the shortest decimal number of narrow floats.

    The float32 of 5.1 is 5.099999904632568 as a Python float, which no response would match.
    """
    if value is None:
        return None
    if getattr(kind, "extension_name", None) == "arrow.json":
        return _of_json(value)
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return float(str((np.float16 if pa.types.is_float16(kind) else np.float32)(value)))
    if pa.types.is_struct(kind):
        return {**value, **{field.name: _original(value[field.name], field.type) for field in kind}}
    if hasattr(kind, "value_type") and isinstance(value, list):
        return [_original(inner, kind.value_type) for inner in value]
    return value


def _of_json(text: str) -> Any:
    """Return what JSON says, which datasets makes of columns that mix kinds, or a text itself.

    It writes a text without quotes if it takes it for JSON: 007, 1.50 and [1, 2]. The first is
    none, and numbers would be written as 1.5 and [1,2].
    """
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text
    numbers = value if isinstance(value, list) else [value]
    if any(type(one) not in (int, float) for one in numbers):
        return value
    return value if json.dumps(value, separators=(",", ":")) == text else text


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
