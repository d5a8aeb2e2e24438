"""Rows of files and of the hub: what is read, and which place is named when something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.tasks.rows import read_rows
from tests.cases import table


@pytest.fixture
def file(tmp_path: Path):
    def write(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        return str(path)

    return write


def refusal(data: str, **options: str) -> str:
    """Return the one line that refuses `data`."""
    with pytest.raises(UsageError) as refused:
        read_rows(data, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# ---- JSONL ----


def test_every_line_is_a_row_with_its_place_and_blank_lines_are_counted_and_skipped(file):
    data = file("p.jsonl", b'{"a": 1}\n\n  \t\r\n{"a": [2], "b": null}\r\n{"a": "\xc3\xa9"}')
    assert read_rows(data) == [
        (f"{data}, line 1", {"a": 1}),
        (f"{data}, line 4", {"a": [2], "b": None}),
        (f"{data}, line 5", {"a": "é"}),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_row(file):
    data = file("p.jsonl", b'\xef\xbb\xbf{"a": 1}\n')
    assert read_rows(data) == [(f"{data}, line 1", {"a": 1})]


def test_a_line_separator_within_a_text_does_not_end_the_row(file):
    # U+2028, U+0085 and a form feed end lines for str.splitlines(), not in JSONL.
    text = '{"a": "x\u2028y\u0085z"}\n{"a": 2}\n'
    rows = read_rows(file("p.jsonl", text.encode()))
    assert [row for _, row in rows] == [{"a": "x\u2028y\u0085z"}, {"a": 2}]


# ---- CSV ----


def test_columns_are_the_headers_and_values_are_text(file):
    data = file("p.csv", b'\xef\xbb\xbfprompt,answer\n3+2=,5\n"say ""hi"", now",\n')
    assert read_rows(data) == [
        (f"{data}, line 2", {"prompt": "3+2=", "answer": "5"}),
        (f"{data}, line 3", {"prompt": 'say "hi", now', "answer": ""}),
    ]


@table("end", [b"\n", b"\r\n"])
def test_a_quoted_newline_is_kept_and_lines_after_it_are_counted_with_it(file, end):
    lines = [b"a,b", b'1,"x', b'y"', b"", b"4,5"]
    data = file("p.csv", end.join(lines))
    (_, first), second = read_rows(data)
    assert first == {"a": "1", "b": "x" + end.decode() + "y"}
    assert second == (f"{data}, line 5", {"a": "4", "b": "5"})


# ---- parquet ----


def test_parquet_rows_are_numbered_from_one_across_row_groups(tmp_path):
    data = str(tmp_path / "p.parquet")
    messages = [[{"role": "user", "content": str(i)}] for i in range(5)]
    pq.write_table(pa.table({"prompt": messages, "n": [0, 1, None, 3, 4]}), data, row_group_size=2)
    rows = read_rows(data)
    assert [place for place, _ in rows] == [f"{data}, row {i}" for i in (1, 2, 3, 4, 5)]
    assert rows[2][1] == {"prompt": [{"role": "user", "content": "2"}], "n": None}


# ---- the hub ----


def test_split_subset_and_revision_reach_the_hub(monkeypatch):
    asked: list[Any] = []

    def load_dataset(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
        asked.append((arguments, options))
        return [{"question": "1+1", "answer": "2"}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = read_rows("openai/gsm8k", split="test", subset="main", revision="abc")
    assert asked == [(("openai/gsm8k", "main"), {"split": "test", "revision": "abc"})]
    assert rows == [("openai/gsm8k [test], row 1", {"question": "1+1", "answer": "2"})]
    read_rows("gsm8k")
    assert asked[1] == (("gsm8k", None), {"split": "train", "revision": None})


def test_narrow_floats_of_the_hub_are_as_short_as_they_were_written(monkeypatch):
    kind = datasets.Features({"answer": datasets.Value("float32"), "n": datasets.Value("int64")})
    table = datasets.Dataset.from_dict({"answer": [5.1, None], "n": [1, 2]}, features=kind)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table)
    assert [row for _, row in read_rows("a/b")] == [
        {"answer": 5.1, "n": 1},
        {"answer": None, "n": 2},
    ]


@table(
    ("name", "content", "part"),
    [
        ("p.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("p.jsonl", b'{"a": 1}\n{"a": "caf\xe9"}\n', "byte 19 is not UTF-8"),
        ("p.jsonl", b'{"a": 1}\n\n  {"a": }\n', "line 3 is not JSON"),
        ("p.jsonl", b'{"a": 1}\n\n[1]', "line 3 is not an object"),
        ("p.csv", b'a,b\n"x\ny",2\n3\n', "line 4 has 1 fields"),
        ("p.csv", b'a\n1\n"x\ny\nz\n', "cannot be read: unexpected end of data"),
        ("p.csv", b"a,b\n", "has no rows"),
        ("p.parquet", b"garbage", "p.parquet cannot be read"),
        ("p.txt", b"", "name one (.jsonl, .parquet, .csv)"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_place(file, name, content, part):
    assert part in refusal(file(name, content))


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert f"there is no data file {tmp_path / 'p.jsonl'};" in refusal(str(tmp_path / "p.jsonl"))
