"""Dynamic sampling: rounds until every update has groups with right and wrong responses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mugrpo.disk.records import Score, Status
from mugrpo.tasks.embedded import Chain
from tests.faults.harm import refused, stopped
from tests.runs import (
    Command,
    assert_same,
    final_weights,
    finished,
    read_metrics,
    shards,
    write_config,
)

pytest_plugins = ["tests.run_fixtures"]

# A stage needs 6 groups. The first samples 12 of them, in 6 shards and 4 rounds; the second 6.
DYNAMIC = ("--sampling.name", "dynamic", "--optimizer.lr", "3e-4")
CAPPED = (*DYNAMIC, "--sampling.max_oversampling", "1.5")

Planned = tuple[str, int, list[str]]  # a group's problem, occurrence and statuses


def table(run_dir: Path, stage: int, kind: str, shard: int = 0) -> list[dict[str, Any]]:
    path = run_dir / f"stages/{stage:03d}/{kind}/shard-{shard:05d}.parquet"
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def planned(run_dir: Path, stage: int, size: int = 4) -> list[list[Planned]]:
    """Return the groups of each batch of a stage, from the files of plan, rollouts and scores."""
    batches: dict[int, list[dict[str, Any]]] = {}
    for place in table(run_dir, stage, "plan"):
        both = (table(run_dir, stage, kind, place["shard"]) for kind in ("rollouts", "scores"))
        rollout, score = (rows[place["row"]] for rows in both)
        batches.setdefault(place["batch"], []).append(rollout | score)
    planned_batches = []
    for rows in batches.values():
        groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        for group in groups:
            assert len({(row["problem_id"], row["occurrence"]) for row in group}) == 1
            assert [row["sample"] for row in group] == list(range(size))
        planned_batches.append(
            [(g[0]["problem_id"], g[0]["occurrence"], [r["status"] for r in g]) for g in groups]
        )
    return planned_batches


def assert_good(batches: list[list[Planned]], count: int) -> None:
    """Check for `count` batches of two problems, all groups with right and wrong responses."""
    assert [len({problem for problem, _, _ in batch}) for batch in batches] == [2] * count
    groups = [group for batch in batches for group in batch]
    assert len({group[:2] for group in groups}) == 2 * count
    assert all("right" in seen and set(seen) != {"right"} for _, _, seen in groups)


def sampled(run_dir: Path, stage: int) -> list[int]:
    """Return the number of rollouts in each shard of a stage."""
    manifest = json.loads((run_dir / f"stages/{stage:03d}/rollouts/manifest.json").read_text())
    return [manifest["shards"][number]["rows"] for number in sorted(manifest["shards"], key=int)]


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("dynamic") / "run"
    finished(run_dir, *DYNAMIC)
    return run_dir


def test_every_planned_group_has_right_and_wrong_responses(dynamic: Path):
    assert sampled(dynamic, 0) == [8] * 6 and sampled(dynamic, 1) == [8] * 3
    for stage in range(2):
        assert_good(planned(dynamic, stage), 3)
    updates = [line for line in read_metrics(dynamic) if line["kind"] == "update"]
    assert [line["zero_variance_share"] for line in updates] == [0.0] * 6


def test_the_groups_are_those_that_vary_in_the_order_they_were_sampled(dynamic: Path):
    """Twelve problems are drawn from one epoch of 24: no batch has to wait for another problem."""
    varied = []
    for shard in range(6):
        both = zip(
            *(table(dynamic, 0, kind, shard) for kind in ("rollouts", "scores")), strict=True
        )
        rows = [rollout | score for rollout, score in both]
        for group in (rows[:4], rows[4:]):
            right = sum(row["status"] == "right" for row in group)
            varied += [(group[0]["problem_id"], group[0]["occurrence"])] * (0 < right < 4)
    made = [group[:2] for batch in planned(dynamic, 0) for group in batch]
    assert len(varied) == 7 and made == varied[:6]


def test_one_refresh_line_covers_all_rounds(dynamic: Path):
    refreshes = [line for line in read_metrics(dynamic) if line["kind"] == "refresh"]
    assert [(line["update"], line["rollouts"]) for line in refreshes] == [(0, 48), (3, 24)]
    assert refreshes[0]["zero_variance_share"] == pytest.approx(5 / 12)


# A shard is two engine batches. The first round of stage 0 is three shards, each later one is one.


@pytest.mark.long
def test_phase_by_phase_gives_the_bits_of_train(dynamic: Path, tmp_path: Path, command: Command):
    run_dir = tmp_path / "run"
    words = [write_config(tmp_path / "config"), "--run-dir", run_dir, *DYNAMIC]
    for stage, rounds in ((0, 4), (1, 1)):
        for number in range(rounds):
            if number:
                have = (
                    f"stage 0 has {2 + number} of {3 + number} shards of rollouts; run `mugrpo gen"
                )
                refused(command("optimize", *words), have)
            assert command("generate", *words).status == 0
            assert command("score", *words).status == 0
        assert command("optimize", *words, "--stage", stage).status == 0
    assert final_weights(run_dir) == final_weights(dynamic)
    ours, theirs = (
        {k: v for k, v in shards(d).items() if "stages" in k} for d in (run_dir, dynamic)
    )
    assert ours == theirs


@pytest.mark.long
def test_a_lost_shard_of_a_later_round_of_a_past_stage_is_made_again(
    dynamic: Path, tmp_path: Path, command: Command
):
    run_dir = Path(shutil.copytree(dynamic, tmp_path / "run"))
    for kind in ("rollouts", "scores"):
        (run_dir / f"stages/000/{kind}/shard-00004.parquet").unlink()
    assert command("repair", run_dir).status == 0
    assert command("train", run_dir).status == 0
    assert_same(run_dir, dynamic)


# ---- too few groups ----


@pytest.mark.long
def test_a_stage_that_has_reached_the_sampling_limit_stops_with_the_remedies(
    tmp_path: Path, command: Command
):
    run_dir = tmp_path / "run"
    words = [write_config(tmp_path / "config"), "--run-dir", run_dir, *CAPPED]
    for _ in range(2):  # the second time nothing is sampled
        stopped(
            command("train", *words),
            "stage 0: 5 of 9 sampled groups have both right and wrong responses, enough for 2 of ",
            "sampling.max_oversampling = 1.5",
            "raise --sampling.max_oversampling",
            "--sampling.when_short fill",
            "--sampling.name every",
            "--force",
        )
        assert sampled(run_dir, 0) == [8, 8, 8, 8, 4]  # 1.5 x 6 groups of 4
        assert not (run_dir / "stages/000/plan").exists()
    every = Path(shutil.copytree(run_dir, tmp_path / "every"))
    ended = command("train", run_dir, "--sampling.when_short", "fill", "--force")
    assert ended.status == 0
    assert "enough for 2 of 3 batches; the rest are filled with other groups" in ended.out
    first, second, third = planned(run_dir, 0)
    assert_good([first, second], 2)
    # the fifth, and one that does not vary
    assert [len(set(seen)) for _, _, seen in third] == [2, 1]
    assert command("train", every, "--sampling.name", "every", "--force").status == 0
    finished(tmp_path / "never dynamic", "--optimizer.lr", "3e-4")
    assert final_weights(every) == final_weights(tmp_path / "never dynamic")


# ---- with other options ----


def alternating(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a judge: every second response is right."""

    def score(_: Chain, answers: Any) -> Any:
        for number, _answer in enumerate(answers):
            yield Score(Status.WRONG, 0.0) if number % 2 else Score(Status.RIGHT, 1.0)

    monkeypatch.setattr(Chain, "score", score)


@pytest.mark.long
def test_if_all_groups_vary_the_run_is_the_one_that_trains_on_every_group(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    alternating(monkeypatch)
    config, judged = write_config(tmp_path / "config"), ("--rewards.truncated", "scored")
    for name in ("dynamic", "every"):
        words = [config, "--run-dir", tmp_path / name, "--sampling.name", name, *judged]
        assert command("train", *words).status == 0
    assert_same(tmp_path / "dynamic", tmp_path / "every")
