from __future__ import annotations

from pathlib import Path

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.report.read import (
    RunData,
    flattened,
    number,
    phase_seconds,
    read_runs,
    training_clock,
    training_seconds,
    unique_names,
)
from tests.report.synthetic import (
    evaluation,
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


def test_a_run_named_twice_is_read_once(tmp_path: Path):
    write_config(tmp_path / "a")
    assert len(read_runs([tmp_path / "a", tmp_path / "b" / ".." / "a"])) == 1


@pytest.mark.parametrize("content", ["nothing", "empty", "file", "other"])
def test_a_path_that_is_not_a_run_is_refused_in_one_sentence(tmp_path: Path, content: str):
    path = tmp_path / "a"
    if content == "file":
        path.write_text("x")
    elif content != "nothing":
        path.mkdir()
    if content == "other":
        (path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match=r"not (a run|the config)"):
        read_runs([path])


def test_an_incomplete_last_line_is_skipped_and_a_bad_one_noted(tmp_path: Path):
    write_config(tmp_path)
    write_metrics(tmp_path, [update(1), update(2)], torn='{"kind": "upd')
    run = read_runs([tmp_path])[0]
    assert [line["update"] for line in run.updates] == [1, 2] and run.notes == []
    first, second = (tmp_path / "metrics.jsonl").read_text().splitlines()[:2]
    (tmp_path / "metrics.jsonl").write_text(f"{first}\nrubbish\n{second}\n")
    run = read_runs([tmp_path])[0]
    assert [line["update"] for line in run.updates] == [1, 2]
    assert run.notes == [f"1 lines of {tmp_path / 'metrics.jsonl'} cannot be read"]


def test_damaged_samples_are_noted_and_left_out(tmp_path: Path):
    write_config(tmp_path)
    write_samples(tmp_path, 1, [sample(["a"], [1.0])])
    write_samples(tmp_path, 2, []).write_text('{"update": 2}')
    run = read_runs([tmp_path])[0]
    assert [file["update"] for file in run.samples] == [1]
    assert "has no samples that can be shown" in run.notes[0]


def test_only_finite_numbers_count():
    line = {"a": 1, "b": True, "c": "1", "d": None, "e": float("nan"), "f": 0.5}
    assert [number(line, key) for key in "abcdefg"] == [1, None, None, None, None, 0.5, None]


def test_options_are_flattened_by_dotted_names():
    assert flattened({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {
        "a.b": 1,
        "a.c.d": [2],
        "e": None,
    }


@pytest.fixture
def run(tmp_path: Path) -> RunData:
    """A run of two stages of two updates."""

    def timed(number: int, checkpoint: float = 0.0, logprobs: float = 0.0) -> dict[str, object]:
        seconds = {"time/update": 3.0, "time/read": 0.5, "time/checkpoint": checkpoint}
        seconds["time/logprobs"] = logprobs
        return update(number, **seconds)

    write_config(tmp_path, stages=2, batches_per_stage=2)
    lines = [
        evaluation(0, 0.25, **{"time/evaluate": 5.0}),
        refresh(0, 0, **{"time/refresh": 1.0, "time/generate": 10.0, "time/score": 2.0}),
        timed(1, logprobs=2.0),  # of a reference, before the stage's first update
        timed(2),
        evaluation(2, 0.5, **{"time/evaluate": 6.0}),
        refresh(2, 1, **{"time/refresh": 3.0, "time/generate": 20.0, "time/score": 2.0}),
        timed(3, checkpoint=4.0),  # what was saved after update 2
        timed(4),
        evaluation(4, 0.75, **{"time/evaluate": 7.0}),
    ]
    write_metrics(tmp_path, lines[::-1])  # the order in the file does not count
    return read_runs([tmp_path])[0]


def test_the_training_clock_leaves_evaluation_out(run: RunData):
    clock = training_clock(run)
    assert {at: seconds for at, seconds in clock.items() if at[0] != "refresh"} == {
        ("evaluation", 0): 0.0,
        ("update", 1): 18.5,
        ("update", 2): 22.0,
        ("evaluation", 2): 22.0,
        ("update", 3): 54.5,  # with the checkpoint after update 2
        ("update", 4): 58.0,
        ("evaluation", 4): 58.0,
    }
    assert training_seconds(run) == 58.0


def test_phases_add_up(run: RunData):
    assert phase_seconds(run) == {
        "refresh": 4.0,
        "generate": 30.0,
        "score": 4.0,
        "optimize": 16.0,
        "checkpoint": 4.0,
        "evaluate": 18.0,
    }
