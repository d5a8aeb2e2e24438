"""Replay: batches with rollouts of earlier stages, each under the policy that sampled it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.plans import Place, read_plan
from mugrpo.report.page import GROUPS
from mugrpo.run.progress import Progress
from mugrpo.stages.logprobs import StoredLogprobs, logprobs_stage
from mugrpo.stages.plan import plan_stage, stage_shards
from mugrpo.stages.reader import StageReader
from mugrpo.stages.stage import Stage
from tests.runs import (
    Command,
    assert_same,
    final_weights,
    finished,
    killed,
    mugrpo,
    read_metrics,
    shard_path,
    train,
)
from tests.stages.builders import stage_of, write_shard
from tests.stages.test_overlap import OVERLAP, assert_same_but_for_order

pytest_plugins = ["tests.run_fixtures"]

# Stages of 3 updates of 2 groups of 4, so half of an update's groups are 2 more.
REPLAY = ("--replay.share", "0.5")
MIXED, EASY = [1, 0, 0, 0], [1, 1, 1, 1]


def replaying(folder: Path, number: int, **groups: Any) -> Stage:
    replay = {"share": 0.5, **groups.pop("replay", {})}
    return stage_of(folder, number, replay=replay, schedule={"stages": 3}, **groups)


def trained(folder: Path, number: int, rewards: list[list[float]] | None = None, **groups: Any):
    """Write a stage's shards, its plan and the checkpoint at its end."""
    stage = replaying(folder, number, **groups)
    for shard in range(3):
        write_shard(stage, shard, (rewards or [MIXED] * 6)[2 * shard : 2 * shard + 2])
    plan_stage(stage, lambda _: None)
    stage.folder.checkpoint(stage.end).mkdir(parents=True)


def planned(stage: Stage) -> list[list[Place]]:
    plan_stage(stage, lambda _: None)
    return read_plan(stage.shards("plan"), stage.number)


def problem_at(stage: Stage, place: Place) -> int:
    return stage_shards(stage.earlier(place.stage))[place.shard][place.row // 4][0]


# ---- the plan ----


def test_a_batch_has_its_own_groups_first_then_groups_of_the_stage_before(tmp_path: Path):
    """The 6 groups of stage 0 come once each in the 3 batches of stage 1."""
    trained(tmp_path, 0)
    stage = replaying(tmp_path, 1)
    batches = planned(stage)
    for shard, batch in enumerate(batches):
        assert batch[:8] == [(1, shard, row) for row in range(8)]
        assert len(batch) == 16 and {place.stage for place in batch[8:]} == {0}
        problems = [problem_at(stage, place) for place in batch]
        assert all(len(set(problems[start : start + 4])) == 1 for start in (0, 4, 8, 12))
        assert len(set(problems)) == 4
    again = [place[1:] for batch in batches for place in batch[8:]]
    assert sorted(again) == [(shard, row) for shard in range(3) for row in range(8)]
    assert stage.shards("plan").entry(0)["replayed"] == {"0": 6}
    assert read_plan(stage.earlier(0).shards("plan"), 0) == [
        [(0, shard, row) for row in range(8)] for shard in range(3)
    ]


@pytest.mark.parametrize(("stages", "pool"), [(1, {1: 6}), (2, {0: 3, 1: 3}), (9, {0: 3, 1: 3})])
def test_only_the_stages_before_are_replayed_and_their_own_groups_alone(
    tmp_path: Path, stages: int, pool: dict[int, int]
):
    """Of 12 groups in a window of two stages, 3 batches get 6: which ones, the seed decides."""
    trained(tmp_path, 0)
    trained(tmp_path, 1)
    batches = planned(replaying(tmp_path, 2, replay={"stages": stages}))
    firsts = [place for batch in batches for place in batch[8::4]]
    counts = Counter(place.stage for place in firsts)
    assert counts.keys() == pool.keys() and len(set(firsts)) == counts.total() == 6


def test_mixed_replays_groups_with_right_and_wrong_responses_and_says_if_they_are_too_few(
    tmp_path: Path,
):
    trained(tmp_path, 0, [EASY, EASY, EASY, EASY, EASY, MIXED])
    stage, said = replaying(tmp_path, 1, replay={"choice": "mixed"}), list[str]()
    plan_stage(stage, said.append)
    for batch in read_plan(stage.shards("plan"), 1):
        assert batch[8:] == [(0, 2, row) for row in range(4, 8)]
    assert said == [
        "stage 1: 3 of its 3 batches replay fewer than 2 groups (at least 1): earlier stages have "
        "too few groups of other problems"
    ]


def test_other_options_make_another_plan_until_an_update_is_made(tmp_path: Path):
    trained(tmp_path, 0)
    first = planned(replaying(tmp_path, 1))
    assert [len(batch) for batch in planned(replaying(tmp_path, 1, replay={"share": 0.0}))] == [
        8,
        8,
        8,
    ]
    assert planned(replaying(tmp_path, 1)) == first
    replaying(tmp_path, 1).folder.checkpoint(4).mkdir()
    assert planned(replaying(tmp_path, 1, replay={"share": 0.0})) == first


# ---- reading ----


def test_replayed_rollouts_keep_their_policys_step_scores_and_logprobs(tmp_path: Path):
    trained(tmp_path, 0, [EASY, EASY, EASY, EASY, EASY, MIXED])
    stage = replaying(tmp_path, 1)
    for shard in range(3):
        write_shard(stage, shard, [MIXED, MIXED])
    (first, *_) = planned(stage)
    reader = StageReader(stage, lambda *_: [])
    experience = reader.of_update(3)
    assert experience.replayed == 8
    assert [r.policy_step for r in experience.rollouts] == [3] * 8 + [0] * 8
    assert [r.problem_id for r in experience.rollouts] == [
        str(problem_at(stage, place)) for place in first
    ]
    expected = [MIXED if place[:3] == (0, 2, 4) else EASY for place in first[8::4]]
    rewards = [score.reward for score in experience.scores]
    assert rewards == [*MIXED, *MIXED, *expected[0], *expected[1]]
    # Updates 3, 4 and 5 of the run, counted from 0: stage 0's policy had seen none.
    ages = [reader.replay_metrics(update) for update in (3, 4, 5)]
    assert ages == [{"replayed_share": 0.5, "replayed_staleness": age} for age in (3.0, 4.0, 5.0)]
    assert reader.shards_of(3) == {0} and reader.behavior_reward() == 6 / 24


def test_staleness_is_the_mean_over_the_rollouts_of_several_stages(tmp_path: Path):
    """At update 6, those of stage 0 are 6 updates old, those of stage 1 three."""
    trained(tmp_path, 0)
    trained(tmp_path, 1)
    stage = replaying(tmp_path, 2, replay={"stages": 2})
    for shard in range(3):
        write_shard(stage, shard, [MIXED, MIXED])
    (first, *_) = planned(stage)
    old = sum(place.stage == 0 for place in first[8:]) / 8
    measured = StageReader(stage, lambda *_: []).replay_metrics(6)
    assert measured == {"replayed_share": 0.5, "replayed_staleness": 3 + 3 * old}


def test_stored_logprobs_are_those_of_the_rollouts_own_stage(tmp_path: Path):
    """Each stage's are those of the policy that it begins with: 0 and 3 updates old."""
    corrected = {"correction": {"name": "truncated"}}
    trained(tmp_path, 0, **corrected)
    stage = replaying(tmp_path, 1, **corrected)
    for shard in range(3):
        write_shard(stage, shard, [MIXED, MIXED])
    plan = planned(stage)
    asked: list[tuple[int, int]] = []

    def compute(update: int, rollouts: Any) -> list[np.ndarray]:
        asked.append((update, len(rollouts)))
        return [np.full(2, update, np.float32) for _ in rollouts]

    logprobs_stage(stage, compute, Progress())
    assert asked == [(0, 8)] * 3 + [(3, 8)] * 3  # stage 0 lacked them too
    (kept,) = StoredLogprobs(stage, plan, compute).of_update(4).values()
    assert [int(row[0]) for row in kept] == [3] * 8 + [0] * 8


def test_proximal_logprobs_of_a_period_cover_what_its_updates_replay(tmp_path: Path):
    objective = {"objective": {"name": "decoupled_ppo", "proximal_period": 2}}
    trained(tmp_path, 0, **objective)
    stage = replaying(tmp_path, 1, **objective)
    for shard in range(3):
        write_shard(stage, shard, [MIXED, MIXED])
    plan = planned(stage)
    asked: list[tuple[int, list[int]]] = []

    def compute(update: int, rollouts: Any) -> list[np.ndarray]:
        asked.append((update, [r.policy_step for r in rollouts]))
        return [np.full(2, n, np.float32) for n, _ in enumerate(rollouts)]

    stored = StoredLogprobs(stage, plan, compute)
    kept = [stored.of_update(update)["proximal_logprobs"] for update in (3, 4, 5)]
    batch = [3] * 8 + [0] * 8
    assert asked == [(3, batch * 2), (5, batch)]
    assert [[int(row[0]) for row in rows] for rows in kept] == [
        [*range(16)],
        [*range(16, 32)],
        [*range(16)],
    ]


def test_a_replayed_shard_that_is_gone_is_named(tmp_path: Path):
    trained(tmp_path, 0)
    stage = replaying(tmp_path, 1)
    for shard in range(3):
        write_shard(stage, shard, [MIXED, MIXED])
    (first, *_) = planned(stage)
    stage.earlier(0).shards("rollouts").forget(first[8].shard)
    with pytest.raises(RunStopped, match="is gone, but stage 1 replays its rollouts; put it and"):
        StageReader(stage, lambda *_: []).of_update(3)


# ---- runs ----


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("replayed") / "run"
    finished(run_dir, *REPLAY)
    return run_dir


def test_updates_say_what_they_replay_and_how_stale_it_is(replayed: Path, reference: Path):
    """Two stages of three updates: the second trains on twice as many rollouts."""
    updates = [line for line in read_metrics(replayed) if line["kind"] == "update"]
    assert [line["replayed_share"] for line in updates] == [0, 0, 0, 0.5, 0.5, 0.5]
    assert [line["replayed_staleness"] for line in updates] == [None, None, None, 3, 4, 5]
    assert [line["staleness"] for line in updates] == [0, 1, 2, 0, 1, 2]
    plain = [line for line in read_metrics(reference) if line["kind"] == "update"]
    assert not any("replayed_share" in line for line in plain)
    assert [updates[n].items() >= plain[n].items() for n in range(6)] == [True] * 3 + [False] * 3
    drawn = {series.key for panel in GROUPS for series in panel.series}
    assert {"replayed_share", "replayed_staleness"} <= drawn
    for update in (4, 6):  # what is kept of an update is of its own stage
        document = json.loads((replayed / f"samples/update-{update:06d}.json").read_text())
        shown = {(s["problem_id"], s["occurrence"]) for s in document["samples"]}
        own = {(p, k) for p, k in _groups(replayed, 1)}
        assert shown <= own


def _groups(run_dir: Path, stage: int) -> set[tuple[str, int]]:
    tables = (pq.read_table(shard_path(run_dir, stage, shard)).to_pylist() for shard in range(3))
    return {(row["problem_id"], row["occurrence"]) for rows in tables for row in rows}


@pytest.mark.parametrize(
    ("place", "nth"),
    [
        pytest.param("stage", 2, marks=pytest.mark.long),
        pytest.param("plan without manifest", 2, marks=pytest.mark.long),
        pytest.param("gradient", 4, marks=pytest.mark.long),
        ("gradient", 6),
    ],
)
def test_a_killed_run_replays_the_same_rollouts(
    replayed: Path, tmp_path: Path, place: str, nth: int
):
    killed(tmp_path / "run", place, nth, *REPLAY)
    finished(tmp_path / "run", *REPLAY)
    assert_same(tmp_path / "run", replayed)


@pytest.mark.long
def test_a_lost_plan_is_made_again_from_the_earlier_ones(replayed: Path, tmp_path: Path):
    killed(tmp_path / "run", "gradient", 5, *REPLAY)
    shard_path(tmp_path / "run", 1, 0, "plan").unlink()
    assert mugrpo("repair", tmp_path / "run").status == 0
    finished(tmp_path / "run", *REPLAY)
    assert_same(tmp_path / "run", replayed)


@pytest.mark.long
def test_training_beside_generation_replays_the_same(replayed: Path, tmp_path: Path):
    finished(tmp_path / "run", *REPLAY, *OVERLAP)
    assert_same_but_for_order(tmp_path / "run", replayed)


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_methods_of_a_bakeoff_replay_what_the_run_replays(
    replayed: Path, tmp_path: Path, command: Command
):
    run_dir = Path(shutil.copytree(replayed, tmp_path / "run"))
    ended = command("bakeoff", run_dir, "--stage", 1, "--objectives", "mu-grpo")
    assert (ended.status, ended.err) == (0, "")
    arm = run_dir / "bakeoff/stage-001/mu-grpo"
    assert final_weights(arm) == final_weights(run_dir)


@pytest.mark.long
def test_another_share_needs_force_and_counts_from_the_next_stage_on(
    tmp_path: Path, replayed: Path, command: Command
):
    run_dir = tmp_path / "run"
    killed(run_dir, "gradient", 1, *REPLAY, "--replay.share", "0.4")
    ended = train(run_dir, *REPLAY)
    assert ended.status == 2 and "replay.share: 0.4 -> 0.5" in ended.err
    assert train(run_dir, *REPLAY, "--force").status == 0
    assert final_weights(run_dir) == final_weights(replayed)
