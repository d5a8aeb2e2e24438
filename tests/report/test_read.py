from __future__ import annotations

from pathlib import Path

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.report.read import evenly, flattened, number, read_runs, unique_names
from tests.report.synthetic import (
    refresh,
    sample,
    update,
    write_config,
    write_metrics,
    write_samples,
)


def test_names_have_as_many_parents_as_it_takes_to_differ():
    roots = [Path("/a/x/run"), Path("/b/x/run"), Path("/b/other"), Path("/b/y/run")]
    assert unique_names(roots) == ["a/x/run", "b/x/run", "other", "y/run"]


def test_a_run_named_twice_is_read_once(tmp_path):
    write_config(tmp_path / "a")
    assert len(read_runs([tmp_path / "a", tmp_path / "b" / ".." / "a"])) == 1


@pytest.mark.parametrize("content", ["nothing", "empty", "file", "other"])
def test_a_path_that_is_not_a_run_is_refused_in_one_sentence(tmp_path, content):
    path = tmp_path / "a"
    if content == "file":
        path.write_text("x")
    elif content != "nothing":
        path.mkdir()
    if content == "other":
        (path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match=r"not (a run|the config)"):
        read_runs([path])


def test_no_runs_at_all_are_refused():
    with pytest.raises(UsageError):
        read_runs([])


def test_an_incomplete_last_line_is_skipped_and_a_bad_one_noted(tmp_path):
    write_config(tmp_path)
    write_metrics(tmp_path, [update(1), update(2)], torn='{"kind": "upd')
    run = read_runs([tmp_path])[0]
    assert [line["update"] for line in run.updates] == [1, 2] and run.notes == []
    first, second = (tmp_path / "metrics.jsonl").read_text().splitlines()[:2]
    (tmp_path / "metrics.jsonl").write_text(f"{first}\nrubbish\n{second}\n")
    run = read_runs([tmp_path])[0]
    assert [line["update"] for line in run.updates] == [1, 2]
    assert run.notes == [f"1 lines of {tmp_path / 'metrics.jsonl'} cannot be read"]


def test_a_token_has_its_ratio_and_its_marks(tmp_path):
    write_config(tmp_path)
    marks = {"clipped": [1], "vetoed": [1, 2]}
    entry = sample(["a", "b", "c"], [1.0, 4.0, 0.5], marks=marks)
    write_samples(tmp_path, 64, [entry], stage=0, staleness=63)
    (file,) = read_runs([tmp_path])[0].samples
    assert (file.update, file.stage, file.staleness) == (64, 0, 63)
    tokens = file.samples[0].tokens
    assert [token.ratio for token in tokens] == pytest.approx([1.0, 4.0, 0.5])
    assert [token.behavior for token in tokens] == pytest.approx([0.5] * 3)
    assert [token.marks for token in tokens] == [(), ("clipped", "vetoed"), ("vetoed",)]


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        "[]",
        '{"update": 1}',
        '{"update": 1, "samples": [{}]}',
        '{"update": 1, "samples": [1]}',
        '{"update": null, "samples": []}',
    ],
)
def test_a_file_of_samples_that_cannot_be_shown_becomes_a_note(tmp_path, broken):
    write_config(tmp_path)
    write_samples(tmp_path, 1, []).write_text(broken)
    run = read_runs([tmp_path])[0]
    assert run.samples == [] and len(run.notes) == 1 and "update-000001" in run.notes[0]


def test_logprobs_that_do_not_fit_the_tokens_become_a_note(tmp_path):
    write_config(tmp_path)
    write_samples(tmp_path, 1, [sample(["a", "b"], [1.0, 1.0], logprobs=[0.0])])
    run = read_runs([tmp_path])[0]
    assert run.samples == [] and "2 tokens with 2 and 1 logprobs" in run.notes[0]


@pytest.mark.parametrize("value", [None, True, "1", [1], 10**400, float("nan"), float("inf")])
def test_a_value_that_is_not_a_finite_number_counts_as_missing(value):
    assert number({"a": value}, "a") is None and number({}, "a") is None


def test_options_are_under_dotted_names():
    assert flattened({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {
        "a.b": 1,
        "a.c.d": [2],
        "e": None,
    }


def test_a_selection_is_evenly_spaced_with_both_ends():
    assert evenly(range(3), 5) == [0, 1, 2]
    assert evenly(range(10), 4) == [0, 3, 6, 9]


def test_reading_writes_nothing(tmp_path):
    write_config(tmp_path)
    write_metrics(tmp_path, [refresh(0, 0)])
    before = sorted(tmp_path.rglob("*"))
    read_runs([tmp_path])
    assert sorted(tmp_path.rglob("*")) == before
