"""The tables of plans against runs: verdicts by hand, and where they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

import planning


def row(name: str, planned: float, **taken: float) -> planning.Row:
    parts = dict.fromkeys(("refresh", "generate", "score", "optimize", "checkpoint"), 0.0)
    seconds = {**parts, **taken}
    plan = {part: planned * s for part, s in seconds.items()}
    run = {"run": name, "updates": 8, "each": 8, "from": "a pilot"}
    return {**run, "planned": {**plan, "logprobs": 9.0}, "taken": seconds}


def test_the_whole_may_be_off_by_15_percent_and_only_large_parts_count():
    """10 s of generation and 20 s of updates, planned 10 % too long, and 20 %."""
    near, far = (
        row("near", 1.1, generate=10, optimize=20),
        row("far", 1.2, generate=10, optimize=20),
    )
    far["planned"]["refresh"], far["taken"]["refresh"] = 3.0, 1.0  # less than 5 % of the run
    found = planning.live([near, far])
    rows = [
        [cell.strip() for cell in line.split("|")[5:-1]]
        for line in planning.table(found).splitlines()[2:]
    ]
    assert rows == [
        [
            "0 for 0 s (+0%)",
            "11 for 10 s (+10%)",
            "22 for 20 s (+10%)",
            "33 for 30 s (+10%)",
            "yes",
        ],
        [
            *("3 for 1 s (+200%)", "12 for 10 s (+20%)", "24 for 20 s (+20%)"),
            *("39 for 31 s (+26%)", "no: training"),
        ],
    ]
    assert planning.kept(found) == "1 of 2 rows are within the limits."


def test_only_what_is_between_its_comments_is_written(tmp_path: Path):
    page = tmp_path / "page.md"
    begin, end = "<!-- runs: written by benchmarks/planning.py -->", "<!-- runs: end -->"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    planning.put(page, "runs", "new")
    assert page.read_text() == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    with pytest.raises(AssertionError):
        planning.put(page, "studies", "new")


def test_seconds_of_checkpoints_are_divided_among_those_that_were_measured():
    """Four stages: three checkpoints are measured, in the line of the update after each."""
    schedule = {"stages": 4, "batches_per_stage": 2, "growth": 1.0}
    config = planning.build_config({"preset": "grpo", "schedule": schedule}, "a test")
    names = ("refresh", "generate", "score", "optimize", "checkpoint")
    cell = {f"seconds/{name}": 6.0 for name in names} | {"rollouts": 64, "cell": "a test"}
    run = planning.as_run(cell, config)
    saved = {line["update"]: line.get("time/checkpoint") for line in run.updates}
    assert saved == {1: None, 2: None, 3: 2.0, 4: None, 5: 2.0, 6: None, 7: 2.0, 8: None}
