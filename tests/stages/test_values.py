"""Decisions in the phases of a stage, on values and hand-written shards: no model, no process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mugrpo.config.load import build_config
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.shards import Place, read_plan, read_rollouts, write_rollouts
from mugrpo.stages.logprobs import StageReader
from mugrpo.stages.optimize import samples_due
from mugrpo.stages.stage import (
    Stage,
    plan_stage,
    reference_update,
    require,
    shards_made,
    stage_shards,
)
from tests.stages.builders import stage_of, write_shard

MIXED, EASY = [1, 0, 0, 0], [1, 1, 1, 1]
DYNAMIC = {"name": "dynamic"}


@pytest.fixture(autouse=True)
def at_most_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugrpo.stages.stage.OVERSAMPLING", 2)


def no_logprobs(update: int, rollouts: object) -> list[np.ndarray]:
    raise AssertionError("nothing is to be computed")


def planned(stage: Stage) -> list[list[Place]]:
    plan_stage(stage, lambda _: None)
    return read_plan(stage.shards("plan"))


# ---- planning ----


def test_every_group_is_planned_in_the_order_of_its_draws(tmp_path: Path):
    stage = stage_of(tmp_path)
    assert [len(shard) for shard in stage_shards(stage)] == [2, 2, 2]
    assert planned(stage) == [[(shard, row) for row in range(8)] for shard in range(3)]


def test_dynamic_sampling_asks_for_more_until_every_update_has_its_groups(tmp_path: Path):
    """One of the first 6 groups varies, so 5 more take 5 x 1.1 / ((1 + 1) / (6 + 1)) or 20 groups.

    They come one shard of 2 at a time, and at most 12 groups may be sampled.
    """
    stage = stage_of(tmp_path, sampling=DYNAMIC)
    write_shard(stage, 0, [EASY, MIXED])
    assert len(stage_shards(stage)) == 3  # the others are not scored
    write_shard(stage, 1, [EASY, EASY])
    write_shard(stage, 2, [EASY, EASY])
    assert [len(shard) for shard in stage_shards(stage)] == [2, 2, 2, 2]
    for shard in (3, 4):
        write_shard(stage, shard, [MIXED, MIXED])
    assert len(stage_shards(stage)) == 6
    write_shard(stage, 5, [MIXED, EASY])
    batches = planned(stage)
    groups = [[batch[0], batch[4]] for batch in batches]  # the first place of each group
    assert groups == [[(0, 4), (3, 0)], [(3, 4), (4, 0)], [(4, 4), (5, 0)]]
    assert len({problem for shard in stage_shards(stage) for problem, _ in shard}) == 12


def test_dynamic_sampling_that_finds_too_few_stops_with_the_ways_out(tmp_path: Path):
    stage = stage_of(tmp_path, sampling=DYNAMIC)
    for shard in range(6):
        write_shard(stage, shard, [EASY, MIXED])
    write_shard(stage, 5, [EASY, EASY])
    with pytest.raises(RunStopped, match="5 of 12 sampled groups have both right and wrong"):
        plan_stage(stage, lambda _: None)
    assert not stage.shards("plan").numbers()


def test_a_plan_from_other_scores_counts_only_once_an_update_is_made(tmp_path: Path):
    stage = stage_of(tmp_path, sampling=DYNAMIC)
    for shard in range(3):
        write_shard(stage, shard, [MIXED, MIXED])
    first = planned(stage)
    write_shard(stage, 2, [MIXED, EASY])
    assert len(stage_shards(stage)) == 4
    stage.folder.checkpoint(1).mkdir(parents=True)
    assert len(stage_shards(stage)) == 3 and planned(stage) == first


def test_missing_shards_are_reported_with_the_command_that_makes_them(tmp_path: Path):
    stage = stage_of(tmp_path)
    write_shard(stage, 0, [MIXED, MIXED])
    write_shard(stage, 1, [MIXED, MIXED], judge="another")
    assert (shards_made(stage, "rollouts"), shards_made(stage, "scores")) == ((2, 3), (1, 3))
    with pytest.raises(UsageError, match="stage 0 has 2 of 3 shards of rollouts; run `mugrpo gen"):
        require(stage, "rollouts")
    with pytest.raises(UsageError, match="stage 0 has 1 of 3 shards of scores; run `mugrpo score"):
        require(stage, "scores")


# ---- reading ----


def test_an_update_reads_the_rollouts_that_the_plan_gives_it(tmp_path: Path):
    stage = stage_of(tmp_path)
    for shard in range(3):
        write_shard(stage, shard, [MIXED, EASY])
    plan_stage(stage, lambda _: None)
    reader = StageReader(stage, no_logprobs)
    experience = reader.of_update(1)
    draws = stage_shards(stage)[1]
    assert [r.problem_id for r in experience.rollouts] == [str(p) for p, _ in draws for _ in "1234"]
    assert [score.reward for score in experience.scores] == [*MIXED, *EASY]
    assert reader.shards_of(2) == {2} and reader.has({0, 1, 2})


def test_scores_of_another_judge_do_not_count_until_the_stage_is_trained_on(tmp_path: Path):
    stage = stage_of(tmp_path)
    for shard in range(3):
        write_shard(stage, shard, [MIXED, MIXED], judge="another")
    plan_stage(stage, lambda _: None)
    reader = StageReader(stage, no_logprobs)
    assert not reader.has({0})
    stage.folder.checkpoint(3).mkdir(parents=True)
    assert StageReader(stage, no_logprobs).has({0})
    stage.folder.checkpoint(3).rmdir()
    stage.folder.origin.write_text("{}")  # a run on another run's rollouts
    assert StageReader(stage, no_logprobs).has({0})


def test_the_proximal_policy_is_asked_once_a_period_for_all_its_rollouts(tmp_path: Path):
    """3 updates in periods of 2: the first of 2 batches, the second of 1."""
    objective = {"name": "decoupled_ppo", "proximal_period": 2}
    stage = stage_of(tmp_path, objective=objective)
    for shard in range(3):
        write_shard(stage, shard, [MIXED, MIXED])
    asked: list[tuple[int, int]] = []

    def compute(update: int, rollouts: list[object]) -> list[np.ndarray]:
        asked.append((update, len(rollouts)))
        return [np.full(2, update - i, np.float32) for i in range(len(rollouts))]

    planned(stage)
    reader = StageReader(stage, compute)
    kept = [reader.of_update(update).stored["proximal_logprobs"] for update in range(3)]
    assert asked == [(0, 16), (2, 8)]
    assert [[int(row[0]) for row in rows] for rows in kept] == [
        [0, -1, -2, -3, -4, -5, -6, -7],
        [-8, -9, -10, -11, -12, -13, -14, -15],
        [2, 1, 0, -1, -2, -3, -4, -5],
    ]


def test_stored_proximal_logprobs_of_other_rollouts_are_computed_again(tmp_path: Path):
    stage = stage_of(tmp_path, objective={"name": "decoupled_ppo", "proximal_period": 2})
    for shard in range(3):
        write_shard(stage, shard, [MIXED, MIXED])
    asked: list[int] = []

    def compute(update: int, rollouts: list[object]) -> list[np.ndarray]:
        asked.append(update)
        return [np.zeros(2, np.float32)] * len(rollouts)

    planned(stage)
    StageReader(stage, compute).of_update(0)
    rollouts = stage.shards("rollouts")
    for shard, recomputed in [(2, [0]), (1, [0, 0])]:  # the first period trains on shards 0 and 1
        others = [replace(r, seed=r.seed + 100) for r in read_rollouts(rollouts, shard)]
        write_rollouts(rollouts, shard, others, policy_step=0)
        StageReader(stage, compute).of_update(1)
        assert asked == recomputed


# ---- saving ----


def due(updates: int, **checkpoint: object) -> list[int]:
    raw = {"schedule": {"stages": 2, "batches_per_stage": 4, "growth": 1}, "checkpoint": checkpoint}
    config = build_config(raw, "test")
    return [u for u in range(1, updates + 1) if config.checkpoint_due(u)]


def test_checkpoints_are_due_every_so_often_at_stage_ends_and_at_the_end():
    assert due(8) == [4, 8]
    assert due(8, every=3) == [3, 6, 8]


def test_samples_are_due_at_both_ends_of_a_stage_and_every_so_often(tmp_path: Path):
    stage = stage_of(tmp_path, schedule={"batches_per_stage": 20})
    assert [u for u in range(1, 21) if samples_due(stage, u)] == [1, 16, 20]


def test_the_reference_changes_every_so_many_stages(tmp_path: Path):
    kl = {"name": "kl", "period": 2}
    stage = stage_of(tmp_path, reference=kl, schedule={"stages": 5})
    assert [reference_update(stage.config, s) for s in range(5)] == [0, 0, 6, 6, 12]
    fixed = stage_of(tmp_path, reference={"name": "kl"})
    assert reference_update(fixed.config, 4) == 0
