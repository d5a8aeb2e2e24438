"""Tables of results and of a comparison, also of hostile and damaged files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_json, with_checksum
from mugrpo.extensions.evals.tables import HEAD, row, write_table
from tests.report.synthetic import HOSTILE
from tests.runs import Command

pytest_plugins = ["tests.run_fixtures"]

NUMBER = r"[+-]?\d[\d,]*\.?\d*"
WITH_INTERVAL = re.compile(rf"{NUMBER} \({NUMBER} to {NUMBER}\)")

MEASURES = {
    "avg@2": [0.375, 0.0625, 0.75],
    "pass@1": [0.375, 0.0625, 0.75],
    "pass@2": [0.5, 0.125, 0.875],
    "truncated": [0.25, 0.125, 0.5],
    "no_answer": [0.125, 0.0, 0.25],
    "mean_length": [88.5, 80.25, 1097.0],
}


def write_result(root: Path, update: int = 0, suite: str = "sums", **changes: Any) -> Path:
    """Write a result of two samples on four problems. Return its file."""
    rights = changes.pop("rights", (2, 1, 0, 0))
    problems = [
        {"id": f"p{i}", "right": right, "judged": 2, "samples": 2} for i, right in enumerate(rights)
    ]
    result = {
        **{"suite": suite, "title": suite.capitalize(), "update": update, "model": "chain"},
        **{"data": "sums.jsonl", "subset": None, "split": None, "revision": None},
        **{"engine": "continuous", "precision": "fp32", "samples": 2, "temperature": 1.0},
        **{"top_p": 1.0, "max_new_tokens": 48, "seed": 7, "problems": 4, "responses": 8},
        **{"measures": MEASURES, "per_problem": problems},
        **{"conventions": {"samples": "chosen for this test"}, "mugrpo": "0.1.0"},
        "ended": "2026-11-24T09:00:00+00:00",
        **changes,
    }
    file = root / suite / f"update-{update:06d}" / "result.json"
    file.parent.mkdir(parents=True)
    publish_json(file, with_checksum(result))
    return file


def test_measures_that_are_missing_are_dashes(tmp_path: Path):
    """One problem has no mean length with an interval, and no verdict means no avg@k."""
    few = {"truncated": [0.25, 0.125, 0.5]}
    file = write_result(tmp_path, measures=few)
    by_head = dict(zip(HEAD, row(json.loads(file.read_text())), strict=True))
    missing = [name for name, cell in by_head.items() if cell == "\u2013"]
    assert missing == ["avg@k", "pass@k", "no answer", "tokens"]


def test_hostile_titles_are_text_and_every_number_is_beside_its_interval(tmp_path: Path):
    title = f"{HOSTILE}|\n| [x](y) \\"
    for update in (0, 64):
        write_result(tmp_path, update, title=title)
    head, rule, *body = write_table(tmp_path).read_text().splitlines()
    assert len(body) == 2 and rule.count("|") == head.count("|") == len(HEAD) + 1
    for line in body:
        assert line.count("0.375 (0.062 to 0.750)") == 1 and f"4 {chr(0xD7)} 2" in line
        assert line.isprintable() and "<" not in line
        escaped = re.findall(r"\\([\\|\[])", line)
        assert escaped == [*"[||[\\"]  # the first is in HOSTILE, after the escape character
        assert re.sub(r"\\.", "", line).count("|") == len(HEAD) + 1


def test_a_damaged_result_is_one_sentence(tmp_path: Path):
    write_result(tmp_path).write_text("{")
    with pytest.raises(UsageError, match="makes it again from the stored responses"):
        write_table(tmp_path)


def test_a_comparison_says_how_many_comparisons_there_are(tmp_path: Path, command: Command):
    """Shares 1, 1/2, 0, 0 against 1, 1, 1/2, 0, and 0, 0, 0, 0 against 0, 0, 0, 1."""
    a, b = tmp_path / "a", tmp_path / "b"
    write_result(a)
    write_result(b, rights=(2, 2, 1, 0), max_new_tokens=32)
    write_result(a, suite="chains", rights=(0, 0, 0, 0))
    write_result(b, suite="chains", rights=(0, 0, 0, 2))
    ended = command("benchmark", "compare", a, b, "--out", tmp_path / "out.json")
    assert ended.status == 0, ended
    assert "2 comparisons, paired by problem" in ended.out
    assert f"sums: a response has at most 48 tokens in {a}, 32 in {b}." in ended.out
    lines = [line for line in ended.out.splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    rows = {name: cells for name, *cells in table[2:]}
    assert list(rows) == ["Chains", "Sums", "mean over benchmarks"]
    for _, first, second, difference, _, _ in list(rows.values())[:2]:
        assert all(map(WITH_INTERVAL.fullmatch, (first, second, difference)))
    assert rows["mean over benchmarks"][1:3] == ["\u2013", "\u2013"]
    assert rows["Sums"][3].startswith("+0.250 (")
    made = json.loads((tmp_path / "out.json").read_text())
    assert made["rows"][1]["first"][0] == 0.375
    refused = command("benchmark", "compare", a, b, "--samples", "4")
    assert refused.status == 2 and "it takes no samples" in refused.err
