"""Decisions in the phases of a stage, on values and hand-written shards: no model, no process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mugrpo.config.load import build_config
from mugrpo.config.rewards import RewardOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Score, Status
from mugrpo.disk.shards import Place, read_rollouts, write_rollouts
from mugrpo.hosts.reader import StageReader
from mugrpo.hosts.updates import samples_due
from mugrpo.run.stage import Selection, Stage, group_varies, reference_update, surplus_text
from tests.cases import table
from tests.stages.builders import stage_of, write_shard

MIXED, EASY = [1, 0, 0, 0], [1, 1, 1, 1]


def no_logprobs(update: int, rollouts: object) -> list[np.ndarray]:
    raise AssertionError("nothing is to be computed")


def written(folder: Path, groups: list[list[int]], judge: str = "judge", **parts: Any) -> Stage:
    """Return a stage whose three shards are there, each of these groups."""
    stage = stage_of(folder, **parts)
    for shard in range(3):
        write_shard(stage, shard, groups, judge=judge)
    return stage


def first_places(stage: Stage) -> list[list[Place] | None]:
    """Return the first place of each group of each batch, None for a batch that lacks scores."""
    selection = Selection(stage)
    batches = [selection.batch(number) for number in range(3)]
    return [batch and batch[::4] for batch in batches]


def test_without_a_surplus_a_batch_takes_the_next_groups_of_the_draws(tmp_path: Path):
    stage = stage_of(tmp_path)
    assert [len(shard) for shard in stage.drawn] == [2, 2, 2]
    assert Selection(stage).batch(1) == [(1, row) for row in range(8)]
    assert first_places(stage) == [[(0, 0), (0, 4)], [(1, 0), (1, 4)], [(2, 0), (2, 4)]]
    assert surplus_text(stage) is None


def test_with_a_surplus_it_takes_the_next_that_vary_as_soon_as_their_scores_are_there(tmp_path):
    """3 batches of 2 groups need 6; 1.6 times that is 9.6, so 10 groups in 5 shards."""
    stage = stage_of(tmp_path, sampling={"surplus": 1.6})
    assert [len(shard) for shard in stage.drawn] == [2, 2, 2, 2, 2]
    plain = stage_of(tmp_path / "plain")
    assert stage.drawn[:3] == plain.drawn
    write_shard(stage, 0, [EASY, MIXED])
    write_shard(stage, 2, [MIXED, MIXED])
    assert first_places(stage) == [None, None, None]  # shard 1 comes before shard 2
    write_shard(stage, 1, [EASY, MIXED])
    assert first_places(stage) == [[(0, 4), (1, 4)], [(2, 0), (2, 4)], None]
    write_shard(stage, 3, [EASY, MIXED])
    write_shard(stage, 4, [MIXED, MIXED])
    assert first_places(stage)[2] == [(3, 4), (4, 0)]
    assert surplus_text(stage) == "stage 0: 7 of 10 groups vary, 6 are taken"


def test_if_too_few_vary_the_first_of_the_others_fill_the_last_batches(tmp_path: Path):
    stage = stage_of(tmp_path, sampling={"surplus": 4 / 3})
    for shard in range(4):
        write_shard(stage, shard, [EASY, MIXED])
    assert first_places(stage) == [[(0, 4), (1, 4)], [(2, 4), (3, 4)], [(0, 0), (1, 0)]]
    assert surplus_text(stage) == (
        "stage 0: 4 of 8 groups vary, 6 are taken; 2 of these do not vary and give no gradient"
    )


def test_what_other_processes_publish_is_seen(tmp_path: Path):
    stage, other = stage_of(tmp_path), stage_of(tmp_path)
    assert stage.lacking() == [0, 1, 2]
    write_shard(other, 1, [MIXED, MIXED])
    assert (stage.lacking(), stage.unscored()) == ([0, 2], [0, 2])


def test_scores_that_replace_others_are_seen(tmp_path: Path):
    """An optimizer may have looked at a shard that another process scores again."""
    stage, other = stage_of(tmp_path), stage_of(tmp_path)
    write_shard(other, 1, [MIXED, MIXED], judge="another")
    assert not stage.scored(1)
    write_shard(other, 1, [MIXED, MIXED])
    assert stage.scored(1)


def test_missing_shards_are_reported_with_the_command_that_makes_them(tmp_path: Path):
    stage = stage_of(tmp_path)
    write_shard(stage, 0, [MIXED, MIXED])
    write_shard(stage, 1, [MIXED, MIXED], judge="another")
    with pytest.raises(UsageError, match="stage 0 has 2 of 3 shards of rollouts; run `mugrpo gen"):
        stage.require("rollouts")
    with pytest.raises(UsageError, match="stage 0 has 1 of 3 shards of scores; run `mugrpo score"):
        stage.require("scores")


def test_an_update_reads_the_rollouts_of_its_batch(tmp_path: Path):
    stage = written(tmp_path, [MIXED, EASY])
    reader = StageReader(stage, no_logprobs)
    experience = reader.of_update(1)
    draws = stage.drawn[1]
    assert [r.problem_id for r in experience.rollouts] == [p.id for p, _ in draws for _ in "1234"]
    assert [score.reward for score in experience.scores] == [*MIXED, *EASY]
    assert all(map(reader.ready, range(3)))


def test_scores_of_another_judge_do_not_count_until_the_stage_is_trained_on(tmp_path: Path):
    stage = written(tmp_path, [MIXED, MIXED], judge="another")
    reader = StageReader(stage, no_logprobs)
    assert not reader.ready(0)
    stage.folder.checkpoint(3).mkdir(parents=True)
    assert StageReader(stage, no_logprobs).ready(0)
    stage.folder.checkpoint(3).rmdir()
    stage.folder.origin.write_text("{}")  # a run on another run's rollouts
    assert StageReader(stage, no_logprobs).ready(0)


def test_the_proximal_policy_is_asked_once_a_period_for_all_its_rollouts(tmp_path: Path):
    """3 updates in periods of 2: the first of 2 batches, the second of 1."""
    objective = {"name": "decoupled_ppo", "proximal_period": 2}
    stage = written(tmp_path, [MIXED, MIXED], objective=objective)
    asked: list[tuple[int, int]] = []

    def compute(update: int, rollouts: list[object]) -> list[np.ndarray]:
        asked.append((update, len(rollouts)))
        return [np.full(2, update - i, np.float32) for i in range(len(rollouts))]

    reader = StageReader(stage, compute)
    kept = [reader.of_update(update).stored["proximal_logprobs"] for update in range(3)]
    assert asked == [(0, 16), (2, 8)]
    found = [[int(row[0]) for row in rows] for rows in kept]
    assert found == [[*range(0, -8, -1)], [*range(-8, -16, -1)], [*range(2, -6, -1)]]


def test_stored_proximal_logprobs_of_other_rollouts_are_computed_again(tmp_path: Path):
    objective = {"name": "decoupled_ppo", "proximal_period": 2}
    stage = written(tmp_path, [MIXED, MIXED], objective=objective)
    asked: list[int] = []

    def compute(update: int, rollouts: list[object]) -> list[np.ndarray]:
        asked.append(update)
        return [np.zeros(2, np.float32)] * len(rollouts)

    StageReader(stage, compute).of_update(0)
    rollouts = stage.shards("rollouts")
    for shard, recomputed in [(2, [0]), (1, [0, 0])]:  # the first period trains on shards 0 and 1
        others = [replace(r, seed=r.seed + 100) for r in read_rollouts(rollouts, shard)]
        write_rollouts(rollouts, shard, others, policy_step=0)
        StageReader(stage, compute).of_update(1)
        assert asked == recomputed


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


R, W, N = Status.RIGHT, Status.WRONG, Status.NO_ANSWER
CUT, SKIPPED, ERROR, SLOW = Status.TRUNCATED, Status.SKIPPED, Status.ERROR, Status.UNFINISHED


@table(
    ("statuses", "varies"),
    [
        ([R, W, W], True),
        ([R, R, R], False),
        ([W, W, W], False),
        ([W, N, N], False),  # neither is right
        ([R, N], True),
        ([R, R, ERROR], False),  # no verdict
        ([R, R, SLOW], True),  # an unfinished response is wrong
        ([R, SKIPPED], False),
        ([ERROR, SKIPPED], False),
        ([R, W, ERROR, SKIPPED], True),
        ([], False),
    ],
)
def test_a_group_varies_if_some_are_right_and_some_are_not(statuses, varies):
    """Whatever the rewards are: here all differ."""
    scores = [Score(s, float(n) if s.rewarded else None) for n, s in enumerate(statuses)]
    assert group_varies(scores, RewardOptions()) is varies


@table(("truncated", "varies"), [("zero", True), ("masked", False), ("scored", True)])
def test_a_cut_response_is_not_right_unless_it_is_masked(truncated, varies):
    rewards = RewardOptions(truncated=truncated)
    assert group_varies([Score(s, 0.0) for s in (R, R, CUT)], rewards) is varies
    assert group_varies([Score(s, 0.0) for s in (W, W, CUT)], rewards) is False


@table(
    ("graded", "varies"),
    [
        (((0.9, 0), (0.3, 0)), True),
        (((0.3, 0), (0.3, 0)), False),
        (((0.3, 0), (0.1, -0.2)), False),  # only the penalty on length differs
        (((0.3, 0), (0.3, -0.2)), True),  # 0.3 and 0.5 without it
        (((0.3, 0), None), True),  # cut: 0
        (((0.0, 0), None), False),
    ],
)
def test_without_a_verdict_a_group_varies_if_its_rewards_do(graded, varies):
    """(reward, penalty on length in it) of each response; None for one that was cut."""
    scores = [
        Score(CUT, 0.0) if one is None else Score(Status.GRADED, one[0], {"overlong": one[1]})
        for one in graded
    ]
    assert group_varies(scores, RewardOptions()) is varies
