"""Rows of files and of the hub: what is read, and which place is named when something is wrong."""

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.tasks.cells import answer_of
from mugrpo.tasks.rows import read_rows
from tests.cases import refusal, table


@pytest.fixture
def file(tmp_path: Path):
    def write(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        return str(path)

    return write


@table(
    ("name", "content", "rows"),
    [
        (
            "p.jsonl",
            b'\xef\xbb\xbf{"a": 1}\n\n  \t\r\n{"a": [2], "b": null}\r\n{"a": "\xc3\xa9"}',
            {1: {"a": 1}, 4: {"a": [2], "b": None}, 5: {"a": "é"}},
        ),
        (  # these and a form feed end lines for str.splitlines(), not in JSONL
            "p.jsonl",
            '{"a": "x\u2028y\u0085z"}\n{"a": 2}\n'.encode(),
            {1: {"a": "x\u2028y\u0085z"}, 2: {"a": 2}},
        ),
        (
            "p.csv",
            b'\xef\xbb\xbfprompt,answer\n3+2=,5\n"say ""hi"", now",\n',
            {2: {"prompt": "3+2=", "answer": "5"}, 3: {"prompt": 'say "hi", now', "answer": ""}},
        ),
        ("p.tsv", b"prompt\tanswer\n3, 2\t5\n", {2: {"prompt": "3, 2", "answer": "5"}}),
        ("p.JSONL.GZ", gzip.compress(b'{"a": 1}\n\n{"a": 2}'), {1: {"a": 1}, 3: {"a": 2}}),
        ("p.v2.csv.gz", gzip.compress(b"a\n7\n"), {2: {"a": "7"}}),
        *(
            (
                "p.csv",
                end.join(["a,b", '1,"x', 'y"', "", "4,5"]).encode(),
                {2: {"a": "1", "b": f"x{end}y"}, 5: {"a": "4", "b": "5"}},
            )
            for end in ("\n", "\r\n")
        ),
    ],
)
def test_rows_have_the_place_of_their_line_and_blank_lines_are_skipped(file, name, content, rows):
    data = file(name, content)
    assert read_rows(data) == [(f"{data}, line {n}", row) for n, row in rows.items()]


def test_the_rows_of_a_list_are_numbered_from_one(file):
    data = file("p.json", b'[{"a": 1}, {"a": [2]}]')
    assert read_rows(data) == [(f"{data}, row 1", {"a": 1}), (f"{data}, row 2", {"a": [2]})]


def test_parquet_rows_are_numbered_from_one_across_row_groups(tmp_path):
    data = str(tmp_path / "p.parquet")
    messages = [[{"role": "user", "content": str(i)}] for i in range(5)]
    pq.write_table(pa.table({"prompt": messages, "n": [0, 1, None, 3, 4]}), data, row_group_size=2)
    rows = read_rows(data)
    assert [place for place, _ in rows] == [f"{data}, row {i}" for i in (1, 2, 3, 4, 5)]
    assert rows[2][1] == {"prompt": [{"role": "user", "content": "2"}], "n": None}


def mixed(tmp_path: Path, rows: list[dict[str, Any]]) -> tuple[list[Any], datasets.Dataset, str]:
    """Return the rows as they are read from lines, as datasets reads these, and its parquet file.

    It reads lines whose columns mix kinds as its type Json.
    """
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    kept = datasets.load_dataset(
        "json", data_files=str(lines), split="train", cache_dir=str(tmp_path)
    )
    kept.to_parquet(tmp_path / "rows.parquet")
    return [row for _, row in read_rows(str(lines))], kept, str(tmp_path / "rows.parquet")


NUMBERS_AND_TEXTS = [5, "five", "007", 1.5, "1.50", "1e3", "1/2", "[1, 2]", "", None, 2**60]


def test_json_of_datasets_is_what_the_lines_were(tmp_path, monkeypatch):
    """Answers of several kinds, and messages with different keys: from lines, parquet, the hub."""
    ask = {"role": "user", "content": "1+1"}
    rows = [
        {"prompt": [ask], "answer": answer, "other": {"a": [n, "x", {"b": None}]} if n else 3}
        for n, answer in enumerate(NUMBERS_AND_TEXTS)
    ]
    rows[1]["prompt"] = [{"role": "system", "content": "Add.", "name": "tutor"}, ask]
    lines, kept, parquet = mixed(tmp_path, rows)
    assert lines == rows and "arrow.json" in str(pq.read_schema(parquet).field("prompt").type)
    assert [row for _, row in read_rows(parquet)] == rows
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: kept)
    assert [row for _, row in read_rows("a/b")] == rows


def test_what_datasets_has_lost_of_a_text_is_what_its_json_says(tmp_path):
    """Its own reader says so, too, but for "007", which is 7 there."""
    texts = ["null", "true", "[1,2]", '"quoted"', "007"]
    _, kept, parquet = mixed(tmp_path, [{"answer": answer} for answer in (5, "five", *texts)])
    read = [row["answer"] for _, row in read_rows(parquet)]
    assert read == [5, "five", None, True, [1, 2], "quoted", "007"]
    assert kept["answer"][:] == [*read[:-1], 7]


def test_an_integer_above_64_bits_in_parquet_is_refused_and_in_lines_kept(tmp_path):
    """datasets makes a float of it: 2^70 = 1180591620717411303424 has lost its last six digits."""
    lines, _, parquet = mixed(tmp_path, [{"answer": 2**70}, {"answer": 3}])
    assert answer_of(lines[0]["answer"], "row 1", "answer") == "1180591620717411303424"
    (_, large), (_, small) = read_rows(parquet)
    assert answer_of(small["answer"], "row 2", "answer") == "3"
    with pytest.raises(UsageError, match=r"may have lost digits.* store it as text"):
        answer_of(large["answer"], "row 1", "answer")


def test_split_subset_and_revision_reach_the_hub_and_its_narrow_floats_are_short(monkeypatch):
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
    kind = datasets.Features({"answer": datasets.Value("float32"), "n": datasets.Value("int64")})
    table = datasets.Dataset.from_dict({"answer": [5.1, None], "n": [1, 2]}, features=kind)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table)
    found = [row for _, row in read_rows("a/b")]
    assert found == [{"answer": 5.1, "n": 1}, {"answer": None, "n": 2}]


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
        ("p.json", b'{"data": []}', "is not a list of objects; write one, or an object a line"),
        ("p.json", b'[{"a": 1}, 2]', "is not a list of objects"),
        ("p.json", b'[{"a": 1}', "p.json cannot be read"),
        ("p.jsonl.gz", b'{"a": 1}', "p.jsonl.gz cannot be read: Not a gzipped file"),
        ("p.jsonl.gz", gzip.compress(b'{"a": 1}')[:-4], "p.jsonl.gz cannot be read"),
        ("p.txt", b"", "name one (.jsonl, .json, .csv, .tsv, .parquet)"),
        ("p.parquet.gz", b"", "name one"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_place(file, name, content, part):
    data = file(name, content)
    assert part in refusal(read_rows, data)
    Path(data).unlink()
    if Path(data).suffixes not in ([".txt"], [".parquet", ".gz"]):
        assert f"there is no data file {data};" in refusal(read_rows, data)
