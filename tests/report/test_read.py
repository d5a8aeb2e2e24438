import tracemalloc
from pathlib import Path

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import number
from mugrpo.report import read
from mugrpo.report.read import (
    RunData,
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


def test_names_have_as_many_parents_as_it_takes_and_a_run_named_twice_is_one(tmp_path: Path):
    roots = [Path("/a/x/run"), Path("/b/x/run"), Path("/b/other"), Path("/b/y/run")]
    assert unique_names(roots) == ["a/x/run", "b/x/run", "other", "y/run"]
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
    assert [line["update"] for line in run.updates] == [1, 2]
    assert run.notes == [
        f"this run stopped after 2 of 8 updates; `mugrpo train {tmp_path}` goes on"
    ]
    first, second = (tmp_path / "metrics.jsonl").read_text().splitlines()[:2]
    (tmp_path / "metrics.jsonl").write_text(f"{first}\nrubbish\n{second}\n")
    run = read_runs([tmp_path])[0]
    assert [line["update"] for line in run.updates] == [1, 2]
    (fault,) = run.faults
    assert fault.startswith(f"{tmp_path / 'metrics.jsonl'}, line 2 is not a metrics line")
    assert f"`mugrpo repair {tmp_path}` keeps the lines that are right" in fault


def test_neighbours_become_one_line_if_they_are_too_many(tmp_path: Path, monkeypatch):
    """Of 7 updates at most 3: 2 and 3 become one, 4 to 6, and the ends stay as they are."""
    monkeypatch.setattr(read, "_DRAWN", 3)
    write_config(tmp_path, batches_per_stage=7)
    first = evaluation(0, 0.25)
    values = {"loss": [1.0, 3.0, 5.0, 1.0, None, 2.0, 9.0], "skipped": [0, 1, 1, 0, 0, 1, 1]}
    lines = [
        update(n, loss=loss, skipped=skipped, **{"time/update": n / 4})
        for n, (loss, skipped) in enumerate(zip(*values.values(), strict=True), 1)
    ]
    write_metrics(tmp_path, [first, *lines[:3], evaluation(3, 0.5), *lines[3:], evaluation(7, 1.0)])
    (run,) = read_runs([tmp_path])
    assert run.evaluations == [first, evaluation(3, 0.5), evaluation(7, 1.0)]
    assert run.updates == [
        lines[0],
        update(3, loss=4.0, skipped=2.0, **{"time/update": 1.25}),
        update(6, loss=1.5, skipped=1.0, **{"time/update": 3.75}),
        lines[6],
    ]
    assert run.count("update") == 7 and training_seconds(run) == 7.0
    assert "the lines of 3 updates are drawn as one" in run.notes[-1] and run.faults == []


def test_a_page_holds_few_lines_however_long_the_file(tmp_path: Path, monkeypatch):
    """Of 20,000 updates, no more than of 2,000, but for a quarter of a megabyte."""
    monkeypatch.setattr(read, "_DRAWN", 100)
    peaks = []
    for count in (2_000, 20_000):
        write_config(tmp_path, stages=1, batches_per_stage=count)
        write_metrics(tmp_path, [update(n, loss=0.5, entropy=1.0) for n in range(1, count + 1)])
        tracemalloc.start()
        (run,) = read_runs([tmp_path])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(run.updates) <= 102 and run.count("update") == count
    assert peaks[1] < peaks[0] + (1 << 18), peaks


def test_damaged_samples_are_noted_and_left_out(tmp_path: Path):
    write_config(tmp_path)
    write_samples(tmp_path, 1, [sample(["a"], [1.0])])
    write_samples(tmp_path, 2, []).write_text('{"update": 2}')
    run = read_runs([tmp_path])[0]
    assert [file["update"] for file in run.samples] == [1]
    assert "has no samples that can be shown" in run.notes[-1]


def test_only_finite_numbers_count():
    line = {"a": 1, "b": True, "c": "1", "d": None, "e": float("nan"), "f": 0.5}
    assert [number(line, key) for key in "abcdefg"] == [1, None, None, None, None, 0.5, None]


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
    write_metrics(tmp_path, lines)
    return read_runs([tmp_path])[0]


def test_the_training_clock_leaves_evaluation_out_and_phases_add_up(run: RunData):
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
    phases = {"refresh": 4.0, "generate": 30.0, "score": 4.0, "optimize": 16.0}
    assert phase_seconds(run) == {**phases, "checkpoint": 4.0, "evaluate": 18.0}
