"""Two measurements, paired by problem: numbers by hand, and their tables."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_json, with_checksum
from mugrpo.extensions.evals.command import _data
from mugrpo.extensions.evals.comparing import Measurement, compare, stored
from mugrpo.extensions.evals.tables import HEAD, comparison_table, row, write_table
from mugrpo.rollouts.evaluation import interval
from tests.cases import table
from tests.report.synthetic import HOSTILE
from tests.runs import Command


def result(name: str, rights: dict[str, int], samples: int = 4, **other: Any) -> dict[str, Any]:
    problems = [
        {"id": id_, "right": right, "judged": samples, "samples": samples}
        for id_, right in rights.items()
    ]
    return {
        **{"suite": name, "title": name.upper(), "samples": samples, "model": "chain", "update": 0},
        **{"data": "sums.jsonl", "subset": None, "split": None, "revision": None},
        **{"engine": "continuous", "precision": "fp32", "temperature": 1.0, "top_p": 1.0},
        **{"max_new_tokens": 48, "seed": 7, "problems": 4, "responses": 4 * samples},
        **{"measures": {f"avg@{samples}": [0.0, 0.0, 1.0]}, "per_problem": problems},
        **{"conventions": {"samples": "chosen for this test"}, "mugrpo": "0.1.0"},
        "ended": "2026-11-24T09:00:00+00:00",
        **other,
    }


def write(root: Path, made: dict[str, Any], update: int = 0) -> Path:
    """Write a result. Return its file."""
    file = root / made["suite"] / f"update-{update:06d}" / "result.json"
    file.parent.mkdir(parents=True)
    publish_json(file, with_checksum({**made, "update": update}))
    return file


def measurement(name: str, *results: dict[str, Any]) -> Measurement:
    return Measurement(name, {result["suite"]: result for result in results})


def test_differences_are_by_problem():
    """Shares 1, 1/2, 0, 0 against 1, 1, 1/2, 0: differences 0, 1/2, 1/2, 0.

    Their mean is 1/4 and their standard error 0.288675 / 2 = 0.144338; Student's t with 3 degrees
    of freedom has the quantile 3.182446, so half the interval is 0.459348.
    """
    first = measurement("A", result("a", {"w": 4, "x": 2, "y": 0, "z": 0}))
    second = measurement("B", result("a", {"z": 0, "y": 2, "x": 4, "w": 4}))  # in another order
    compared = compare(first, second)
    (one,) = compared.rows
    assert one.first is not None and one.second is not None
    assert (one.first[0], one.second[0], one.difference.problems) == (3 / 8, 5 / 8, 4)
    assert one.first[1:] == pytest.approx(interval([1, 0.5, 0, 0], samples=4))
    assert one.second[1:] == pytest.approx(interval([1, 1, 0.5, 0], samples=4))
    assert one.difference.value == 0.25
    assert one.difference.low == pytest.approx(0.25 - 0.459348, abs=1e-5)
    assert one.difference.high == pytest.approx(0.25 + 0.459348, abs=1e-5)
    assert one.holm == one.difference.p_value
    text = comparison_table(compared)
    assert "1 comparison, paired by problem" in text and "+0.250 (-0.209 to +0.709)" in text


def test_the_last_row_is_the_mean_over_benchmarks():
    """Differences 1/4 on each of two problems, and 1 on a single one: the mean is 5/8."""
    first = measurement("A", result("a", {"x": 0, "y": 1}), result("b", {"z": 0}))
    second = measurement("B", result("a", {"x": 1, "y": 2}), result("b", {"z": 4}))
    *_, mean = compare(first, second).rows
    assert mean.difference.value == pytest.approx((1 / 4 + 1) / 2)
    assert (mean.title, mean.first, mean.holm) == ("mean over benchmarks", None, None)


def test_problems_of_one_side_or_without_a_verdict_are_left_out_and_told():
    """The share of x is not known in A: what is left is 1/4 against 1/2."""
    first, second = result("a", {"x": 0, "y": 1}), result("a", {"x": 4, "y": 2})
    first["per_problem"][0]["judged"] = 0
    compared = compare(measurement("A", first), measurement("B", second))
    (one,) = compared.rows
    assert one.first is not None and one.second is not None
    assert (one.first[0], one.second[0], one.difference.problems) == (1 / 4, 1 / 2, 1)
    assert compared.notes == ["a: problems without a verdict in one of the two, left out: 1."]
    first["per_problem"][1]["judged"] = 0
    with pytest.raises(UsageError, match="a: no problem has a verdict in both"):
        compare(measurement("A", first), measurement("B", second))
    first = measurement("A", result("a", {"x": 1, "y": 1, "z": 4}))
    second = measurement("B", result("a", {"w": 0, "x": 2, "y": 2}))
    compared = compare(first, second)
    assert compared.rows[0].difference.problems == 2
    assert compared.notes == ["a: problems that only one of the two has, left out: 2."]


def test_p_values_are_those_of_all_comparisons_together():
    """Holm: of two p-values the smaller is doubled, the larger is at least that."""
    first = measurement(
        "A", result("a", dict.fromkeys("uvwxyz", 1)), result("b", {"x": 2, "y": 1, "z": 0})
    )
    rights = {"u": 2, "v": 3, "w": 2, "x": 2, "y": 3, "z": 2}
    second = measurement("B", result("a", rights), result("b", {"x": 3, "y": 1, "z": 1}))
    small, large, _ = compare(first, second).rows
    assert small.difference.p_value < large.difference.p_value / 2
    assert small.holm == pytest.approx(2 * small.difference.p_value)
    assert large.holm == pytest.approx(large.difference.p_value)


@table(
    ("other", "sentence"),
    [
        (result("b", {"x": 1}), "A has a and B has b: nothing to compare"),
        (result("a", {"y": 1}), "a: the two measurements share no problem"),
        (result("a", {"x": 1}, temperature=0.6), "a: the temperature differs, 1.0 in A and 0.6 in"),
        (result("a", {"x": 1}, samples=2), "a: responses per problem differs, 4 in A and 2 in B"),
    ],
)
def test_what_cannot_be_compared_is_refused(other: dict[str, Any], sentence: str):
    with pytest.raises(UsageError, match=sentence):
        compare(measurement("A", result("a", {"x": 1})), measurement("B", other))


def test_stored_results_are_named_by_folder_or_by_run_and_update(tmp_path: Path):
    run = tmp_path / "run"
    for update, right in ((0, 1), (64, 3)):
        file = write(run / "benchmarks", result("a", {"x": right}), update)
    (run / "config.json").write_text(json.dumps({"provenance": {}}))

    def right(name: str) -> int:
        count: int = stored(name).results["a"]["per_problem"][0]["right"]
        return count

    assert (right(f"{run}@0"), right(f"{run}@64"), right(str(run))) == (1, 3, 3)
    assert right(str(run / "benchmarks")) == 3
    with pytest.raises(UsageError, match="has no results of these suites"):
        stored(str(run), ["b"])
    file.write_text("{")
    with pytest.raises(UsageError, match="makes it again from the stored responses"):
        stored(str(run))
    folder = tmp_path / "me@home" / "results"
    for update in (0, 64):
        write(folder, result("a", {"x": 1}), update)
    found = [stored(name).results["a"]["update"] for name in (f"{folder}", f"{folder}@0")]
    assert found == [64, 0]
    with pytest.raises(UsageError, match="has no results in"):
        stored(str(tmp_path / "you@home" / "results"))


@table(
    ("text", "names", "files"),
    [
        ("x.jsonl", "a", {"a": "x.jsonl"}),
        ("lr=1/x.jsonl", "a", {"a": "lr=1/x.jsonl"}),
        ("a=lr=1/x.jsonl", "a", {"a": "lr=1/x.jsonl"}),
        ("a=x.jsonl,b=y=z.jsonl", "ab", {"a": "x.jsonl", "b": "y=z.jsonl"}),
    ],
)
def test_data_is_a_path_unless_it_begins_with_a_suite(text: str, names: str, files: dict[str, str]):
    assert _data(text, list(names)) == {name: Path(file) for name, file in files.items()}


def test_data_of_an_unknown_suite_is_refused():
    with pytest.raises(UsageError, match=r"'c' is none of the suites; write .* among a, b"):
        _data("c=x", ["a", "b"])


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


def write_sums(
    root: Path, update: int = 0, suite: str = "sums", rights: Any = (2, 1, 0, 0), **changes: Any
) -> Path:
    """Write a result of two samples on four problems. Return its file."""
    by_id = dict(zip("wxyz", rights, strict=True))
    return write(root, result(suite, by_id, 2, **{"measures": MEASURES, **changes}), update)


def test_measures_that_are_missing_are_dashes(tmp_path: Path):
    """One problem has no mean length with an interval, and no verdict means no avg@k."""
    few = {"truncated": [0.25, 0.125, 0.5]}
    file = write_sums(tmp_path, measures=few)
    by_head = dict(zip(HEAD, row(json.loads(file.read_text())), strict=True))
    missing = [name for name, cell in by_head.items() if cell == "\u2013"]
    assert missing == ["avg@k", "pass@k", "no answer", "tokens"]
    file.write_text("{")
    with pytest.raises(UsageError, match="makes it again from the stored responses"):
        write_table(tmp_path)


def test_hostile_titles_are_text_and_every_number_is_beside_its_interval(tmp_path: Path):
    title = f"{HOSTILE}|\n| [x](y) \\"
    for update in (0, 64):
        write_sums(tmp_path, update, title=title)
    head, rule, *body = write_table(tmp_path).read_text().splitlines()
    assert len(body) == 2 and rule.count("|") == head.count("|") == len(HEAD) + 1
    for line in body:
        assert line.count("0.375 (0.062 to 0.750)") == 1 and f"4 {chr(0xD7)} 2" in line
        assert line.isprintable() and "<" not in line
        escaped = re.findall(r"\\([\\|\[])", line)
        assert escaped == [*"[||[\\"]  # the first is in HOSTILE, after the escape character
        assert re.sub(r"\\.", "", line).count("|") == len(HEAD) + 1


def test_a_comparison_says_how_many_comparisons_there_are(tmp_path: Path, command: Command):
    """Shares 1, 1/2, 0, 0 against 1, 1, 1/2, 0, and 0, 0, 0, 0 against 0, 0, 0, 1."""
    a, b = tmp_path / "a", tmp_path / "b"
    write_sums(a)
    write_sums(b, rights=(2, 2, 1, 0), max_new_tokens=32)
    write_sums(a, suite="chains", rights=(0, 0, 0, 0))
    write_sums(b, suite="chains", rights=(0, 0, 0, 2))
    ended = command("benchmark", "compare", a, b, "--out", tmp_path / "out.json")
    assert ended.status == 0, ended
    assert "2 comparisons, paired by problem" in ended.out
    assert f"sums: a response has at most 48 tokens in {a}, 32 in {b}." in ended.out
    lines = [line for line in ended.out.splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    rows = {name: cells for name, *cells in table[2:]}
    assert list(rows) == ["CHAINS", "SUMS", "mean over benchmarks"]
    for _, first, second, difference, _, _ in list(rows.values())[:2]:
        assert all(map(WITH_INTERVAL.fullmatch, (first, second, difference)))
    assert rows["mean over benchmarks"][1:3] == ["\u2013", "\u2013"]
    assert rows["SUMS"][3].startswith("+0.250 (")
    made = json.loads((tmp_path / "out.json").read_text())
    assert made["rows"][1]["first"][0] == 0.375
    refused = command("benchmark", "compare", a, b, "--samples", "4")
    assert refused.status == 2 and "it takes no samples" in refused.err
