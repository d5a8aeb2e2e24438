"""Stages that end early: the run still makes all its updates, killed or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mugrpo.config.load import build_config
from mugrpo.disk.run_dir import RunDir
from mugrpo.rollouts.schedule import Schedule
from mugrpo.stages.optimize import early_end_sentence, ends_early
from mugrpo.stages.stage import Stage
from tests.faults.harm import refused
from tests.runs import (
    EARLY,
    LIMIT,
    Command,
    Ended,
    checkpoints,
    differences,
    final_weights,
    finished,
    killed,
    read_metrics,
    shards,
    write_config,
)

pytest_plugins = ["tests.run_fixtures"]

NO_STAGE_END = (*EARLY, "--checkpoint.stage_end", "false")


def same(run_dir: Path, early: Path) -> None:
    found = differences(run_dir, early, 8)
    assert not found, found


def starts(run_dir: Path) -> dict[int, list[int]]:
    """Return the starts of stages that each checkpoint stores."""
    files = {u: run_dir / f"checkpoints/update-{u:06d}/stages.json" for u in checkpoints(run_dir)}
    return {update: json.loads(file.read_text())["starts"] for update, file in files.items()}


def test_a_stage_ends_after_the_update_above_the_limit_and_the_updates_are_all_made(early: Path):
    updates = [line for line in read_metrics(early) if line["kind"] == "update"]
    assert [line["update"] for line in updates] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [line["stage"] for line in updates] == [0, 0, 0, 1, 1, 2, 2, 2]
    assert [line["staleness"] for line in updates] == [0, 1, 2, 0, 1, 0, 1, 2]
    assert all(line["grad_norm"] > 0.1 for line in updates)
    above = [line["update"] for line in updates if line["tv_token"] > 0.02]
    assert above == [3, 5]  # the third stage ends with the run
    # linearly from 8e-4 to its half over 8 updates, whatever the stages
    rates = [8e-4 - u * 4e-4 / 8 for u in range(8)]
    assert [line["lr"] for line in updates] == pytest.approx(rates)


def test_an_early_end_has_a_line_with_what_was_not_trained_on(early: Path):
    lines = read_metrics(early)
    updates = {line["update"]: line for line in lines if line["kind"] == "update"}
    # 3 and 2 of 4 updates of 2 x 4 rollouts
    assert [line for line in lines if line["kind"] == "stage_end"] == [
        {
            "kind": "stage_end",
            "update": update,
            "stage": stage,
            "updates": made,
            "planned_updates": 4,
            "unused_rollouts": unused,
            "tv_token": updates[update]["tv_token"],
        }
        for stage, update, made, unused in ((0, 3, 3, 8), (1, 5, 2, 16))
    ]
    refreshes = [line for line in lines if line["kind"] == "refresh"]
    assert [(line["update"], line["rollouts"]) for line in refreshes] == [(0, 32), (3, 32), (5, 24)]


def test_a_run_reports_stages_that_ended_early(early_run: tuple[Path, Ended]):
    _, ended = early_run
    said = [line for line in ended.out.splitlines() if " ends after " in line]
    first, second = (line.split(": tv_token 0.0") for line in said)
    assert first[0] == "stage 0 ends after 3 of 4 updates"
    assert first[1].endswith("; 8 of its 32 rollouts are not trained on")
    assert second[0] == "stage 1 ends after 2 of 4 updates"
    assert second[1].endswith("; 16 of its 32 rollouts are not trained on")
    words = "2 ended early; 24 rollouts were generated for updates that were not made"
    assert f"stages      {words}\n" in ended.out
    assert "refreshes   3 made" in ended.out


def test_checkpoints_hold_where_stages_began(early: Path):
    later = [0, 3, 5]
    assert starts(early) == {2: [0], 3: later[:2], 4: later[:2], 5: later, 6: later, 8: [*later, 8]}


# Up to the first stage's end the metrics have six lines: an evaluation, a refresh, three updates
# and "stage_end".


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "nth", "every", "kept"),
    [
        pytest.param("engine batch", 12, 2, [2], marks=pytest.mark.long),
        ("gradient", 7, 2, [2, 4, 6]),
        # it starts over, on the shards of three stages
        pytest.param("gradient", 7, 0, [], marks=pytest.mark.long),
    ],
)
def test_an_early_end_without_a_checkpoint_is_repeated_on_the_existing_shards(
    early: Path, tmp_path: Path, command: Command, place: str, nth: int, every: int, kept: list[int]
):
    run_dir = tmp_path / "run"
    killed(run_dir, place, nth, *NO_STAGE_END, "--checkpoint.every", every)
    assert checkpoints(run_dir) == kept
    made = {p: p.stat().st_ino for p in run_dir.glob("stages/*/rollouts/*.parquet")}
    assert len(made) >= 5
    assert command("train", run_dir).status == 0
    assert {p: p.stat().st_ino for p in made} == made
    same(run_dir, early)


@pytest.mark.long
def test_phase_by_phase_gives_the_bits_of_train(early: Path, tmp_path: Path, command: Command):
    run_dir = tmp_path / "run"
    words = [write_config(tmp_path / "config"), "--run-dir", run_dir, *EARLY]
    for _stage in range(3):  # the current one, as no number is given
        for phase in ("generate", "score", "optimize"):
            assert command(phase, *words).status == 0
    assert final_weights(run_dir, 8) == final_weights(early, 8)
    ours, theirs = ({k: v for k, v in shards(d).items() if "stages" in k} for d in (run_dir, early))
    assert ours == theirs
    for kind in ("refresh", "update", "stage_end"):
        made, expected = (
            [x for x in read_metrics(d) if x["kind"] == kind] for d in (run_dir, early)
        )
        assert made == expected


def test_a_stage_that_is_over_has_no_more_updates(early: Path, tmp_path: Path, command: Command):
    run_dir = Path(shutil.copytree(early, tmp_path / "run"))
    ended = command("optimize", run_dir, "--stage", 0)
    assert ended.status == 0 and "stage 0: all updates are made\n" in ended.out
    refused(command("optimize", run_dir, "--stage", 3), "--stage 3: the run has stages 0 to 2")
    same(run_dir, early)


@pytest.mark.long
def test_passes_over_a_batch_that_a_stages_end_cuts_short_are_resumed(
    tmp_path: Path, command: Command
):
    """3 batches x 2 passes: stages of 2, 2, 3, 3 updates and 2 that are left."""
    options = ("--schedule.passes_per_batch", "2", "--optimizer.lr", "8e-4", *LIMIT)
    options += ("--stage_until.limit", "0.03", "--checkpoint.every", "4", *NO_STAGE_END[-2:])
    finished(tmp_path / "whole", *options)
    assert starts(tmp_path / "whole")[12] == [0, 2, 4, 7, 10, 12]
    killed(tmp_path / "run", "gradient", 9, *options)
    assert checkpoints(tmp_path / "run") == [4, 8]  # update 8 is a batch's first pass
    assert command("train", tmp_path / "run").status == 0
    found = differences(tmp_path / "run", tmp_path / "whole", 12)
    assert not found, found


def first_stage(tmp_path: Path, measure: str = "tv_token", limit: float = 0.5) -> Stage:
    """Return a stage of 3 batches x 2 passes, 8 rollouts a batch, that ends above `limit`."""
    raw = {
        "schedule": {
            "stages": 2,
            "batches_per_stage": 3,
            "passes_per_batch": 2,
            "problems_per_update": 2,
            "group_size": 4,
        },
        "stage_until": {"name": measure, "limit": limit},
    }
    config = build_config(raw, "test")
    return Stage(0, Schedule(config.schedule, 24, seed=0), RunDir(tmp_path), config, judge="")


@pytest.mark.parametrize(("made", "unused"), [(1, 16), (2, 16), (3, 8), (4, 8), (5, 0)])
def test_rollouts_of_a_batch_with_passes_left_count_as_used(tmp_path: Path, made: int, unused: int):
    """The stage ends after `made` of 6 updates, 2 a batch, with 24 rollouts, 8 a batch."""
    stage = first_stage(tmp_path)
    line = ends_early(stage, made, {"tv_token": 0.75})
    assert line == {
        "stage": 0,
        "updates": made,
        "planned_updates": 6,
        "unused_rollouts": unused,
        "tv_token": 0.75,
    }
    assert early_end_sentence(stage, line) == (
        f"stage 0 ends after {made} of 6 updates: tv_token 0.75; {unused} of its 24 rollouts are "
        "not trained on"
    )
    assert stage.schedule.ending_at(made).starts == (0, made)


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (3, {"tv_token": 0.5}),  # at the limit, not above
        (3, {"tv_token": None}),  # no group of the update had a gradient
        (6, {"tv_token": 0.75}),  # the stage's last update
        (3, {"tv_token": 0.25, "ratio/negative/max": 0.75}),  # another measure is above it
    ],
)
def test_a_stage_goes_on_if_nothing_is_above_the_limit(
    tmp_path: Path, made: int, line: dict[str, float | None]
):
    assert ends_early(first_stage(tmp_path), made, line) is None


def test_a_limit_on_the_largest_ratio_of_negatives_ends_stages(early: Path, tmp_path: Path):
    lines = {line["update"]: line for line in read_metrics(early) if line["kind"] == "update"}
    ratio = lines[3]["ratio/negative/max"]
    assert ratio > 1.0001
    line = ends_early(first_stage(tmp_path, "negative_ratio", 1.0001), 3, lines[3])
    assert line is not None and line["negative_ratio"] == ratio
    assert ends_early(first_stage(tmp_path, "negative_ratio", ratio), 3, lines[3]) is None
    none = {"ratio/negative/max": None}  # no response of the update has a negative advantage
    assert ends_early(first_stage(tmp_path, "negative_ratio", 1.0001), 3, none) is None


def test_samples_are_kept_of_the_first_and_last_update_of_the_last_stage(early: Path):
    assert (early / "samples/update-000006.json").exists()  # the last stage's first
    assert (early / "samples/update-000008.json").exists()
