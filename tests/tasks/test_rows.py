"""Rows of files and of the hub: what is read, and which place is named when something is wrong."""

from __future__ import annotations

import os
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


@table("name", ["P.JSONL", "p.Jsonl"])
def test_the_extension_may_be_in_any_case(file, name):
    assert [row for _, row in read_rows(file(name, b'{"a": 1}'))] == [{"a": 1}]


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


@table("end", [b"\n", b"\r\n"])
def test_a_row_of_several_lines_is_named_by_the_line_where_it_begins(file, end):
    lines = [b"a,b", b'1,"x', b"", b'y"', b'2,"z', b'"', b"3,4"]
    data = file("p.csv", end.join(lines))
    assert [place for place, _ in read_rows(data)] == [f"{data}, line {n}" for n in (2, 5, 7)]


@table("first", [b"\n", b"\r\n", b"\xef\xbb\xbf\n"])
def test_blank_lines_before_the_header_are_skipped(file, first):
    data = file("p.csv", first + b"a,b\n\n1,2\n")
    assert read_rows(data) == [(f"{data}, line 4", {"a": "1", "b": "2"})]


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


def test_a_data_set_of_the_hub_that_needs_code_is_refused(monkeypatch):
    """The error is that of datasets 5.2 (load.py), for a repository with a script."""

    def load_dataset(*_: Any, **__: Any) -> None:
        raise RuntimeError("Dataset scripts are no longer supported, but found rollouts.py")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert "code of its own, which mugrpo never runs" in refusal("someone/rollouts")


# ---- limits ----


@table("ending", ["jsonl", "parquet", "csv"])
def test_a_pipe_is_refused_instead_of_waiting_for_a_writer(tmp_path: Path, ending: str):
    os.mkfifo(tmp_path / f"rows.{ending}")
    assert "pipe" in refusal(str(tmp_path / f"rows.{ending}"))


@table(
    ("name", "content", "part"),
    [
        ("p.jsonl", b"[" * 100_000, "line 1 is nested too deeply"),
        ("p.jsonl", b'{"a": ' + b"1" * 5000 + b"}", "line 1 is not JSON"),
        ("p.jsonl", b'{"a": 1}\n{"a": "caf\xe9"}\n', "line 2: byte 19 of the file (0xe9)"),
        ("p.jsonl", b'{"a": 1}\n{"\xc3\xa9": }\n', "line 2 is not JSON at byte 16"),  # of 2 bytes
        # The first line has 8 characters and a newline, a byte order mark 3 bytes.
        ("p.jsonl", b'{"a": 1}\n  {"a": }\n', f"line 2 is not JSON at byte {9 + 2 + 6} of"),
        ("p.jsonl", b'\xef\xbb\xbf{"a": }\n', f"not JSON at byte {3 + 6} of the file"),
        (
            "p.jsonl",
            b'\xef\xbb\xbf{"a": 1}\r\n\n \t{"\xc3\xa9": }\n',
            f"byte {3 + 10 + 1 + 2 + 7} of",
        ),
        ("p.jsonl", b'{"a": 1}\n{"a": 1', f"at byte {9 + 7} of the file"),  # where the file ends
        ("p.jsonl", b'{"a": 1}\n\n[1]', "line 3 is a list, not an object"),
        ("p.jsonl", b"null", "line 1 is null, not an object"),
        ("p.jsonl", b"3.5", "line 1 is a number, not an object"),
        ("p.csv", "\ufeffa,b\n1,2\n".encode("utf-16-be"), "is UTF-16; save it as UTF-8"),
        ("p.csv", b'a,b\n"x\ny",2\n3\n', "line 4 has 1 fields"),
        ("p.csv", b'a\n1\n"x\ny\nz\n', "line 3 is not CSV ("),
        ("p.csv", b"\nb,a,a\n1,2,3\n", "line 2 names the column 'a' twice"),
        ("p.csv", b"prompt;answer\n1,5;2\n", "separates columns by ';'"),
        ("p.csv", b"a,b\n", "has no rows"),
        ("p.parquet", b"PAR1" + bytes(100) + b"\x40\x00\x00\x00PAR1", "cannot be read"),
        ("p.txt", b"", "it must be one of .jsonl, .parquet, .csv"),
        ("p.parquet", b"garbage", "cannot be read as parquet ("),
        ("p.json", b"{}", "it must be one of .jsonl, .parquet, .csv"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_place(file, name, content, part):
    assert part in refusal(file(name, content))
