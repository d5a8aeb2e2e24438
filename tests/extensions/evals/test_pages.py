"""The pages of results and of a comparison, also of hostile and damaged files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.evals.comparing import compare, stored
from mugrpo.extensions.evals.page import write_comparison, write_page
from mugrpo.extensions.evals.tables import HEAD, row
from tests.report.parsed import Parsed, check_safe, layer
from tests.report.synthetic import HOSTILE
from tests.runs import Command

pytest_plugins = ["tests.run_fixtures"]

NUMBER = r"[+-]?\d[\d,]*\.?\d*"
WITH_INTERVAL = re.compile(rf"{NUMBER} \({NUMBER} to {NUMBER}\)")

DISAGREEMENT = {
    "response": "p0/1",
    "reference": "2",
    "first_right": True,
    "first_answer": "2.0",
    "second_answer": None,
}
AGREEMENT = {
    **{"first": "math", "second": "plain", "share": [0.9, 0.8, 0.95]},
    **{"both_right": 2, "only_first": 1, "only_second": 0, "both_wrong": 5},
    **{"unjudged": 0, "one_answer": 0, "disagreements": [DISAGREEMENT]},
}
MEASURES = {
    "avg@2": [0.375, 0.0625, 0.75],
    "pass@1": [0.375, 0.0625, 0.75],
    "pass@2": [0.5, 0.125, 0.875],
    "maj@2": [0.375, 0.0625, 0.75],
    "truncated": [0.25, 0.125, 0.5],
    "no_answer": [0.125, 0.0, 0.25],
    "mean_length": [88.5, 80.25, 1097.0],
}


def write_result(root: Path, update: int = 0, suite: str = "sums", **changes: Any) -> Path:
    """Write a result of two samples on four problems. Return its file."""
    rights = changes.pop("rights", (2, 1, 0, 0))
    problems = [
        {"id": f"p{i}", "right": right, "judged": 2, "samples": 2, "majority": right / 2}
        for i, right in enumerate(rights)
    ]
    result = {
        **{"suite": suite, "title": suite.capitalize(), "update": update, "model": "chain"},
        **{"data": "sums.jsonl", "subset": None, "split": None, "revision": None},
        **{"engine": "continuous", "precision": "fp32", "samples": 2, "temperature": 1.0},
        **{"top_p": 1.0, "max_new_tokens": 48, "seed": 7, "problems": 4, "responses": 8},
        **{"measures": MEASURES, "agreement": AGREEMENT, "per_problem": problems},
        **{"conventions": {"samples": "chosen for this test"}, "mugrpo": "0.1.0"},
        "ended": "2026-11-24T09:00:00+00:00",
        **changes,
    }
    file = root / suite / f"update-{update:06d}" / "result.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(result))
    return file


def safe_page(path: Path) -> Parsed:
    page = Parsed(path)
    check_safe(page)
    return page


def cells(page: Parsed) -> list[str]:
    return [text for inside, text in page.texts if inside == "td"]


def test_every_number_is_beside_its_interval_in_tables_and_charts(tmp_path: Path):
    """Two results have 2 x 6 cells with an interval, and 2 x 7 more below them."""
    write_result(tmp_path)
    write_result(tmp_path, 64)
    page = safe_page(write_page(tmp_path))
    shown = cells(page)
    assert sum(bool(WITH_INTERVAL.fullmatch(text)) for text in shown) == 2 * (7 + 7)
    assert "0.375 (0.062 to 0.750)" in shown and "88.5 (80.2 to 1,097)" in shown
    settings = ("chain", "2.0", "1.0", "0.1.0")
    rest = [WITH_INTERVAL.sub("", text) for text in shown if text not in settings]
    assert not [text for text in rest if re.search(r"\d\.\d", text)]
    charts = page.charts()
    assert set(charts) == {"avg@k against updates", "Sums"}
    for chart in charts.values():
        assert len(layer(chart, "bands")) == len(layer(chart, "lines")) > 0
    (band,) = layer(charts["avg@k against updates"], "bands")
    assert (band["x"], band["y"], band["y2"]) == ([0, 64], [0.0625, 0.0625], [0.75, 0.75])
    assert "agree on 0.900 (0.800 to 0.950) of 8 responses" in page.text
    assert "chosen for this test" in shown and "no answer" in shown
    table = (tmp_path / "table.md").read_text()
    assert table.count("0.375 (0.062 to 0.750)") == 4 and f"4 {chr(0xD7)} 2" in table


def test_measures_that_are_missing_are_dashes(tmp_path: Path):
    """One problem has no mean length with an interval, and no verdict means no avg@k."""
    few = {"truncated": [0.25, 0.125, 0.5]}
    file = write_result(tmp_path, measures=few, agreement={**AGREEMENT, "share": None})
    write_result(tmp_path, 64, measures=few)
    by_head = dict(zip(HEAD, row(json.loads(file.read_text())), strict=True))
    missing = [name for name, cell in by_head.items() if cell == "\u2013"]
    assert missing == ["avg@k", "pass@k", "maj@k", "no answer", "tokens", "graders agree"]
    page = safe_page(write_page(tmp_path))
    assert page.charts() == {} and "Over updates" not in page.of("h2")


def test_hostile_titles_and_answers_are_text(tmp_path: Path):
    title = f"{HOSTILE}|\n| [x](y) \\"
    answers = {**DISAGREEMENT, "first_answer": HOSTILE, "reference": HOSTILE, "second_answer": "1"}
    hostile = {"title": title, "conventions": {HOSTILE: HOSTILE}, "model": HOSTILE}
    agreement = {**AGREEMENT, "first": HOSTILE, "disagreements": [answers]}
    for update in (0, 64):
        write_result(tmp_path, update, agreement=agreement, **hostile)
    safe_page(write_page(tmp_path))
    head, rule, *body = (tmp_path / "table.md").read_text().splitlines()
    assert len(body) == 2 and rule.count("|") == head.count("|") == len(HEAD) + 1
    for line in body:
        assert line.isprintable() and "<" not in line
        escaped = re.findall(r"\\([\\|\[])", line)
        assert escaped == [*"[||[\\"]  # the first is in HOSTILE, after the escape character
        assert re.sub(r"\\.", "", line).count("|") == len(HEAD) + 1

    first = compare(stored(f"{tmp_path}@0"), stored(f"{tmp_path}@64"))
    safe_page(write_comparison(first, tmp_path / "page.html"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "Expecting property name"),
        ("[1]", "list indices"),
        ('{"suite": "sums"}', "it has no title"),
        ("null", "NoneType"),
    ],
)
def test_a_damaged_result_is_one_sentence(tmp_path: Path, text: str, fault: str):
    write_result(tmp_path).write_text(text)
    with pytest.raises(UsageError, match=fault) as caught:
        write_page(tmp_path)
    assert "makes it again from the stored responses" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"measures": {}}, "measures is empty"),
        ({"measures": {"avg@2": [0.5]}}, "not enough values"),
        ({"per_problem": [{"id": "p0"}]}, "it has no right"),
        ({"agreement": {"first": "math"}}, "KeyError: 'share'"),
    ],
)
def test_parts_that_are_damaged_are_told(tmp_path: Path, changes: dict[str, Any], fault: str):
    file = write_result(tmp_path, **changes)
    with pytest.raises(UsageError, match=fault) as caught:
        write_page(tmp_path)
    assert str(caught.value).startswith(f"{file} cannot be read")


def test_a_comparison_is_a_page_with_the_number_of_comparisons(tmp_path: Path, command: Command):
    """Shares 1, 1/2, 0, 0 against 1, 1, 1/2, 0, and 0, 0, 0, 0 against 0, 0, 0, 1."""
    a, b = tmp_path / "a", tmp_path / "b"
    write_result(a)
    write_result(b, rights=(2, 2, 1, 0), max_new_tokens=32)
    write_result(a, suite="chains", rights=(0, 0, 0, 0))
    write_result(b, suite="chains", rights=(0, 0, 0, 2))
    out = tmp_path / "out.html"
    ended = command("benchmark", "compare", a, b, "--out", out)
    assert ended.status == 0, ended
    page = safe_page(out)
    assert "2 comparisons, paired by problem" in page.text and "2 comparisons" in ended.out
    assert f"sums: a response has at most 48 tokens in {a}, 32 in {b}." in page.text
    shown = cells(page)
    assert len(shown) == 4 * 7
    rows = {shown[at]: shown[at + 1 : at + 7] for at in range(0, len(shown), 7)}
    assert list(rows) == [
        *("Chains", "Sums", "all problems, equally weighted", "mean over benchmarks"),
    ]
    for _, first, second, difference, _, _ in list(rows.values())[:3]:
        assert all(map(WITH_INTERVAL.fullmatch, (first, second, difference)))
    assert rows["mean over benchmarks"][1:3] == ["\u2013", "\u2013"]
    assert rows["Sums"][3].startswith("+0.250 (")
    made = json.loads((tmp_path / "out.json").read_text())
    assert made["comparisons"] == 2 and made["benchmarks"][1]["first"][0] == 0.375
    points = layer(page.charts()["Differences"], "points")
    assert [point["x"] for point in points] == [0.25] * 4
    assert all(point["low"] < 0.25 < point["high"] for point in points)


def test_the_page_of_a_comparison_is_in_the_working_directory(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    write_result(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    assert command("benchmark", "compare", "a", "a").status == 0
    assert "1 comparison, paired" in Parsed(tmp_path / "comparison.html").text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--samples", "4"], "it takes no --samples"),
        (["--temperature", "0"], "it takes no --temperature"),
        (["--top-p", "0.9"], "it takes no --top-p"),
        (["--regrade"], "it takes no --regrade"),
        (["--engine.name", "vllm"], "it takes no --engine.name"),
        (["--out", "folder"], "--out folder: name the page of the comparison"),
    ],
)
def test_a_comparison_refuses_what_it_cannot_follow(
    options: list[str],
    sentence: str,
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
):
    write_result(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    ended = command("benchmark", "compare", "a", "a", *options)
    assert ended.status == 2 and sentence in ended.err and len(ended.err.splitlines()) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
