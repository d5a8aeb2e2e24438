"""Runs whose objective needs logprobs of other policies: killed and resumed, damaged, changed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mugrpo.disk.shards import ShardSet, read_logprobs, read_rollouts, write_rollouts
from tests.faults.harm import flip_bit, stopped
from tests.runs import (
    Command,
    Ended,
    assert_same,
    checkpoints,
    final_weights,
    finished,
    killed,
    shard_path,
)

pytest_plugins = ["tests.run_fixtures"]

KL = ("--reference.name", "kl", "--reference.coefficient", "1.0", "--checkpoint.every", 0)
PROXIMAL = ("--objective.name", "decoupled_ppo", "--objective.proximal_period", 2)
PARTS: dict[str, tuple[object, ...]] = {
    "kl": KL,
    "kl to each stage's start": (*KL, "--reference.period", 1, "--checkpoint.keep", 1),
    "proximal": (*PROXIMAL, "--objective.ratio_clip", "[0.99, 1.01]", "--veto.name", "off"),
    "grpo around it": (
        *("--objective.clip_center", "proximal", "--objective.proximal_period", 2),
        *("--objective.ratio_clip", "[0.99, 1.01]"),
    ),
    "truncated": ("--correction.name", "truncated"),
    "masked, m2po, kl": (
        *("--preset", "m2po", "--correction.name", "masked", "--correction.level", "sequence"),
        *KL,
    ),
}
# What each stores: by stage, {shard: updates that its policy had seen}.
KEPT: dict[str, dict[str, list[dict[int, int]]]] = {
    "kl": {"reference_logprobs": [{0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}]},
    "kl to each stage's start": {"reference_logprobs": [{0: 0, 1: 0, 2: 0}, {0: 3, 1: 3, 2: 3}]},
    # Three updates a stage: periods of two and one, each with the policy that it begins with.
    "proximal": {"proximal_logprobs": [{0: 0, 1: 2}, {0: 3, 1: 5}]},
    "grpo around it": {"proximal_logprobs": [{0: 0, 1: 2}, {0: 3, 1: 5}]},
    "truncated": {"trainer_behavior_logprobs": [{0: 0, 1: 0, 2: 0}, {0: 3, 1: 3, 2: 3}]},
    "masked, m2po, kl": {
        "reference_logprobs": [{0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}],
        "trainer_behavior_logprobs": [{0: 0, 1: 0, 2: 0}, {0: 3, 1: 3, 2: 3}],
    },
}


def manifest(run_dir: Path, stage: int, name: str) -> dict[str, dict[str, Any]]:
    path = shard_path(run_dir, stage, 0, name).with_name("manifest.json")
    entries: dict[str, dict[str, Any]] = json.loads(path.read_text())["shards"]
    return entries


def kept(run_dir: Path) -> dict[str, list[dict[int, int]]]:
    """Return, by kind of logprobs and stage, {shard: updates that its policy had seen}."""
    names = {p.name for p in run_dir.glob("stages/*/*_logprobs")}
    return {
        name: [
            {int(n): entry["policy_step"] for n, entry in manifest(run_dir, stage, name).items()}
            for stage in range(2)
        ]
        for name in names
    }


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Uninterrupted runs, made when first asked for. Tests only read them."""

    class Runs(dict[str, Path]):
        def __missing__(self, part: str) -> Path:
            run_dir = tmp_path_factory.mktemp("parts") / "run"
            finished(run_dir, *PARTS[part])
            self[part] = run_dir
            return run_dir

    return Runs()


@pytest.mark.parametrize("part", PARTS)
def test_logprobs_that_a_part_needs_are_stored_and_change_the_weights(
    whole: dict[str, Path], reference: Path, part: str
):
    assert kept(whole[part]) == KEPT[part]
    for name, stages in KEPT[part].items():
        for stage in range(len(stages)):
            made = ShardSet(whole[part] / f"stages/{stage:03d}/rollouts", "rollouts")
            shards = ShardSet(whole[part] / f"stages/{stage:03d}/{name}", name)
            lengths = [
                len(row) for shard in shards.numbers() for row in read_logprobs(shards, shard)
            ]
            tokens = [len(r.response_ids) for s in made.numbers() for r in read_rollouts(made, s)]
            assert lengths == tokens  # the tiny run trains on its rollouts in their order
    assert final_weights(whole[part]) != final_weights(reference)


def test_logprobs_of_the_behavior_policy_are_close_to_the_engines(whole: dict[str, Path]):
    for stage in range(2):
        folder = whole["truncated"] / f"stages/{stage:03d}"
        name = "trainer_behavior_logprobs"
        for shard in range(3):
            found = read_logprobs(ShardSet(folder / name, name), shard)
            rollouts = read_rollouts(ShardSet(folder / "rollouts", "rollouts"), shard)
            for ours, rollout in zip(found, rollouts, strict=True):
                np.testing.assert_allclose(ours, rollout.behavior_logprobs, atol=1e-4)


# ---- damage and changes ----


@pytest.fixture(scope="module")
def begun_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    """Runs by part and the update in which they were killed. Tests copy them."""

    class Runs(dict[tuple[str, int], Path]):
        def __missing__(self, key: tuple[str, int]) -> Path:
            part, update = key
            run_dir = tmp_path_factory.mktemp("begun") / "run"
            killed(run_dir, "gradient", update, *PARTS[part])
            self[key] = run_dir
            return run_dir

    return Runs()


@pytest.fixture
def begun(begun_runs: dict[tuple[str, int], Path], tmp_path: Path):
    def copied(part: str, update: int) -> Path:
        return Path(shutil.copytree(begun_runs[part, update], tmp_path / "run"))

    return copied


def ended_well(ended: Ended) -> bool:
    return (ended.status, ended.err) == (0, "")


def inodes(run_dir: Path, name: str, stage: int = 0) -> list[int]:
    return [shard_path(run_dir, stage, shard, name).stat().st_ino for shard in range(3)]


@pytest.mark.parametrize(
    ("part", "name"), [("kl", "reference_logprobs"), ("truncated", "trainer_behavior_logprobs")]
)
def test_logprobs_of_a_shard_whose_rollouts_changed_are_made_again(
    begun, command: Command, part: str, name: str
):
    """In one shard every response loses its last token. Its scores and logprobs stay."""
    run_dir = begun(part, 1)
    rollouts = ShardSet(run_dir / "stages/000/rollouts", "rollouts")
    notes = {
        key: value
        for key, value in rollouts.entry(1).items()
        if key not in ("rows", "bytes", "sha256", "tokens")
    }
    cut = [
        replace(r, response_ids=r.response_ids[:-1], behavior_logprobs=r.behavior_logprobs[:-1])
        for r in read_rollouts(rollouts, 1)
    ]
    write_rollouts(rollouts, 1, cut, **notes)
    before, old = inodes(run_dir, name), manifest(run_dir, 0, name)
    assert ended_well(command("train", run_dir))
    after, new = inodes(run_dir, name), manifest(run_dir, 0, name)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
    assert new["0"] == old["0"] and new["2"] == old["2"]
    assert new["1"]["rollouts_sha256"] == rollouts.entry(1)["sha256"]
    assert new["1"]["rollouts_sha256"] != old["1"]["rollouts_sha256"]
    found = read_logprobs(ShardSet(run_dir / f"stages/000/{name}", name), 1)
    assert [len(row) for row in found] == [len(r.response_ids) for r in cut]


def test_a_bad_shard_of_proximal_logprobs_is_made_again_within_its_period(
    begun, command: Command, whole: dict[str, Path]
):
    run_dir = begun("proximal", 5)
    assert checkpoints(run_dir) == [2, 4]  # goes on from 4, within the period that began at 3
    bad = shard_path(run_dir, 1, 0, "proximal_logprobs")
    flip_bit(bad)
    stopped(command("train", run_dir), f"{bad} does not match its checksum", "`mugrpo repair")
    assert "it will be made again" in command("repair", run_dir).out
    assert ended_well(command("train", run_dir))
    assert_same(run_dir, whole["proximal"])


def test_a_reference_changed_by_force_within_a_stage_is_made_again(begun, command: Command):
    run_dir = begun("kl", 5)
    assert ended_well(command("train", run_dir, "--reference.period", 1, "--force"))
    assert kept(run_dir)["reference_logprobs"][1] == {0: 3, 1: 3, 2: 3}
