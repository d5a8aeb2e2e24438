"""Rows of a data set, each with the place that error messages give."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import constants

from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import regular
from mugrpo.model.loading import hub_answers

Row = tuple[str, dict[str, Any]]  # (place such as "problems.jsonl, line 3", column -> value)

_FORMATS = (".jsonl", ".parquet", ".csv")


def read_rows(
    data: str,
    *,
    split: str | None = None,
    subset: str | None = None,
    revision: str | None = None,
) -> list[Row]:
    """Return the rows of a local file (.jsonl, .parquet, .csv) or of a data set on the hub.

    Raises UsageError if the data cannot be read or has no rows. The error names file and line if a
    row is at fault.
    """
    path = Path(data)
    if os.path.isdir(path):
        raise UsageError(f"{data} is a directory; name a file in it ({', '.join(_FORMATS)})")
    if is_local(data):
        if option := next(filter(None, (split, subset, revision)), None):
            raise UsageError(
                f"{data} is a local file, which has no split, subset or revision; leave {option!r} "
                "out, and name held-out problems of your own with task.eval_data"
            )
        rows = list(_file_rows(path))
    else:
        rows = list(_hub_rows(data, split or "train", subset, revision))
    if not rows:
        raise UsageError(f"{data} has no rows")
    return rows


def is_local(data: str) -> bool:
    """Return whether `data` names a local file, existing or not, rather than a hub data set."""
    return os.path.exists(data) or Path(data).suffix.lower() in _FORMATS


def _file_rows(path: Path) -> Iterator[Row]:
    readers = {".jsonl": _jsonl_rows, ".parquet": _parquet_rows, ".csv": _csv_rows}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(
            f"{path}: the file extension {path.suffix or '(none)'} is unknown; it must be one of "
            f"{', '.join(_FORMATS)}"
        )
    try:
        yield from reader(regular(path))
    except FileNotFoundError:
        raise UsageError(f"there is no data file {path.absolute()}") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror or _first_line(error)})"
        ) from None


def _jsonl_rows(path: Path) -> Iterator[Row]:
    for number, start, text in _lines(path):
        if text.strip():
            yield f"{path}, line {number}", _json_object(text, path, number, start)


def _lines(path: Path) -> Iterator[tuple[int, int, str]]:
    """Yield (number from 1, offset in bytes, text) of each line, without a byte order mark."""
    start = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise UsageError(f"{path} is UTF-16; save it as UTF-8")
            if number == 1 and line.startswith(codecs.BOM_UTF8):
                start = len(codecs.BOM_UTF8)
                line = line[start:]
            yield number, start, _decoded(line, path, number, start)
            start += len(line)


def _decoded(line: bytes, path: Path, number: int, start: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}, line {number}: byte {start + error.start} of the file "
            f"(0x{line[error.start]:02x}) is not UTF-8; save the file as UTF-8"
        ) from None


def _json_object(text: str, path: Path, number: int, start: int) -> dict[str, Any]:
    try:
        row = json.loads(text.rstrip("\r\n"))
    except RecursionError:
        raise UsageError(f"{path}, line {number} is nested too deeply") from None
    except ValueError as error:
        offset = start + len(text[: getattr(error, "pos", 0)].encode())
        raise UsageError(
            f"{path}, line {number} is not JSON at byte {offset} of the file "
            f"({getattr(error, 'msg', error)}); every line must be one JSON object"
        ) from None
    if not isinstance(row, dict):
        raise UsageError(
            f"{path}, line {number} is {_kind(row)}, not an object like "
            '{"prompt": "...", "answer": "..."}'
        )
    return row


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)
    content = "".join(text for _, _, text in _lines(path))
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    header: list[str] = []
    line = 1  # the first line of the next row
    try:
        for values in reader:
            place, line = f"{path}, line {line}", reader.line_num + 1
            if not values:
                continue
            if not header:
                header = values
                other = next((mark for mark in ";\t|" if mark in header[0]), None)
                if len(header) == 1 and other is not None:
                    raise UsageError(
                        f"{place} separates columns by {other!r}; save the file with commas "
                        f"(pandas.read_csv({path.name!r}, sep={other!r}).to_csv(...))"
                    )
                if repeated := [name for name in header if header.count(name) > 1]:
                    raise UsageError(f"{place} names the column {repeated[0]!r} twice; rename one")
                continue
            if len(values) != len(header):
                raise UsageError(
                    f"{place} has {len(values)} fields, but the header names {len(header)} columns"
                )
            yield place, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise UsageError(f"{path}, line {line} is not CSV ({error})") from None


def _parquet_rows(path: Path) -> Iterator[Row]:
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            narrow = _narrow(file.schema_arrow)
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", _with_short(row, narrow)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise UsageError(f"{path} cannot be read as parquet ({_first_line(error)})") from None


def _hub_rows(data: str, split: str, subset: str | None, revision: str | None) -> Iterator[Row]:
    if data.count("/") > 1 or data.startswith((".", "~", "/")):
        raise UsageError(f"there is no data file {data}, and it is not a data set id on the hub")
    try:
        import datasets
    except ImportError:
        raise UsageError(
            f"{data} is not a local file, and data sets on the hub need one more package: "
            "pip install 'mugrpo[hub]'"
        ) from None
    datasets.disable_progress_bars()
    try:
        with _offline_if_the_hub_is_silent(datasets.config):
            table = datasets.load_dataset(data, subset, split=split, revision=revision)
    except Exception as error:  # of datasets, the hub or the network
        if "scripts are no longer supported" in str(error):
            raise UsageError(
                f"{data} is a data set with code of its own, which mugrpo never runs; save its "
                "rows as a JSONL or parquet file, and name that"
            ) from None
        raise UsageError(
            f"{data} is not a local file, and as a data set on the hub it cannot be loaded "
            f"({type(error).__name__}: {_first_line(error)}). Without a network, name a local file "
            "with --task.data; a gated data set needs `hf auth login` first"
        ) from None
    features = getattr(table, "features", None)
    narrow = _narrow(features.arrow_schema) if features else {}
    for number, row in enumerate(table, start=1):
        yield f"{data} [{split}], row {number}", _with_short(row, narrow)


def _narrow(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the columns whose cells are or hold floats of fewer than 64 bits."""
    return {field.name: field.type for field in schema if "float" in str(field.type)}


def _with_short(row: dict[str, Any], narrow: dict[str, pa.DataType]) -> dict[str, Any]:
    return {**row, **{name: _short(row[name], kind) for name, kind in narrow.items()}}


def _short(value: Any, kind: pa.DataType) -> Any:
    """Return a value with the shortest decimal number for each narrow float in it.

    The float32 of 5.1 is 5.099999904632568 as a Python float.
    """
    if value is None:
        return None
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return float(str((np.float16 if pa.types.is_float16(kind) else np.float32)(value)))
    if pa.types.is_struct(kind):
        return {**value, **{field.name: _short(value[field.name], field.type) for field in kind}}
    if hasattr(kind, "value_type") and isinstance(value, list):
        return [_short(inner, kind.value_type) for inner in value]
    return value


@contextmanager
def _offline_if_the_hub_is_silent(config: Any) -> Iterator[None]:
    """Have `datasets`, whose `config` this is, look only into its cache if the hub is silent."""
    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    if not hub_answers():
        config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _kind(value: Any) -> str:
    kinds = {list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]
