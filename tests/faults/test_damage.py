"""Shards, plans, checkpoints and metrics that are damaged, missing or not listed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases import some
from tests.faults.harm import accepted, flip_bit, stopped, truncate
from tests.runs import Command, assert_same, final_weights, finished, killed, shard_path

pytest_plugins = ["tests.run_fixtures"]


@pytest.mark.promise("damage")
@pytest.mark.parametrize(
    ("harm", "kind", "sentence"),
    some(
        1,
        [
            (flip_bit, "rollouts", "does not match its checksum"),
            (truncate, "rollouts", "bytes instead of"),
            (Path.unlink, "rollouts", "is missing"),
            (flip_bit, "scores", "does not match its checksum"),
            (Path.unlink, "scores", "is missing"),
        ],
    ),
)
def test_a_bad_shard_is_named_marked_by_repair_and_made_again_to_the_same_bits(
    run_dir: Path,
    command: Command,
    reference: Path,
    harm: Callable[[Path], None],
    kind: str,
    sentence: str,
):
    bad = shard_path(run_dir, 1, 2, kind)
    others = {p: p.stat().st_ino for p in run_dir.glob("stages/*/*/*.parquet") if p != bad}
    harm(bad)
    stopped(command("train", run_dir), f"{bad} ", sentence, "`mugrpo repair")
    repaired = command("repair", run_dir)
    assert repaired.status == 0
    assert re.search(f"{bad} .*{sentence}.*; it will be made again\n1 damaged; ", repaired.out)
    assert command("repair", run_dir).out.endswith("no damage found\n")
    again = command("train", run_dir)
    assert again.status == 0
    assert ("stage 1: 2/3 shards done, continuing" in again.out) == (kind == "rollouts")
    assert {p: p.stat().st_ino for p in others} == others
    assert_same(run_dir, reference)


@pytest.mark.promise("copy")
def test_a_copy_of_a_run_that_goes_on_meanwhile_is_repaired_and_ends_in_the_same_bits(
    tmp_path: Path, command: Command, reference: Path
):
    """Its steps are those of docs/reliability.md; the run goes on between two of them."""
    run_dir, copy = tmp_path / "run", tmp_path / "elsewhere" / "run"

    def copied(skipped: str) -> None:
        ignored = shutil.ignore_patterns(skipped, "lock", "private.json")
        shutil.copytree(run_dir, copy, ignore=ignored, dirs_exist_ok=True)

    killed(run_dir, "gradient", 3)
    copied("checkpoints")
    killed(run_dir, "gradient", 3)  # of update 5: update 4 has a checkpoint
    shutil.copytree(run_dir / "checkpoints", copy / "checkpoints")
    cut = Path(shutil.copytree(copy, tmp_path / "cut"))  # had the last step not come
    finished(run_dir)
    copied("checkpoints")
    for folder in (cut, copy):
        assert command("repair", folder).status == 0
        assert command("train", folder).status == 0
        assert final_weights(folder) == final_weights(reference)
    assert_same(copy, reference)


@pytest.mark.long
def test_a_bad_plan_is_named_and_made_again(run_dir: Path, command: Command, reference: Path):
    plan = shard_path(run_dir, 1, 0, "plan")
    flip_bit(plan)
    stopped(command("train", run_dir), str(plan), "does not match its checksum", "`mugrpo repair")
    assert "1 damaged" in command("repair", run_dir).out
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.long
def test_an_unreadable_manifest_is_named_and_its_shards_are_made_again_without_it(
    run_dir: Path, command: Command, reference: Path
):
    manifest = shard_path(run_dir, 1, 0).with_name("manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:100])
    accepted(run_dir)
    stopped(command("train", run_dir), f"{manifest} is unreadable", "`mugrpo repair` sets it aside")
    assert "1 damaged" in command("repair", run_dir).out
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.promise("damage")
@pytest.mark.parametrize(
    "name", some(1, ["model.safetensors", "optimizer.safetensors", "trainer.json"])
)
def test_a_bad_checkpoint_is_named_set_aside_by_repair_and_the_one_before_is_used(
    run_dir: Path, command: Command, reference: Path, name: str
):
    bad = run_dir / "checkpoints" / "update-000004"
    flip_bit(bad / name)
    stopped(command("train", run_dir), f"{bad} has a {name} that does not match its checksum")
    assert f"{bad} has a {name}" in command("repair", run_dir).out
    again = command("train", run_dir)
    assert f"resuming from {run_dir}/checkpoints/update-000003\n" in again.out
    assert_same(run_dir, reference)


@pytest.mark.long
def test_without_a_good_checkpoint_the_run_starts_over_on_its_shards(
    run_dir: Path, command: Command, reference: Path
):
    for folder in run_dir.glob("checkpoints/*"):
        (folder / "model.safetensors").unlink()
    assert "3 damaged" in command("repair", run_dir).out
    again = command("train", run_dir)
    assert again.status == 0 and "resuming" not in again.out
    assert_same(run_dir, reference)


@pytest.mark.long
def test_a_missing_checkpoint_that_a_bad_shard_needs_is_named_with_a_remedy_that_works(
    run_dir: Path, command: Command, reference: Path
):
    gone = run_dir / "checkpoints" / "update-000003"
    shutil.rmtree(gone)
    shard_path(run_dir, 1, 2).unlink()
    command("repair", run_dir)
    stopped(command("train", run_dir), f"{gone} is needed, but gone; remove the later checkpoints")
    shutil.rmtree(run_dir / "checkpoints" / "update-000004")
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.long
def test_extra_files_are_reported_and_not_read(run_dir: Path, command: Command, reference: Path):
    extra = shard_path(run_dir, 1, 3)
    shutil.copy(shard_path(run_dir, 1, 0), extra)
    notes = extra.with_name("notes.txt")
    notes.write_text("not a shard")
    for ended in (command("repair", run_dir), command("train", run_dir)):
        assert ended.status == 0
        for stranger in (extra, notes):
            assert f"{stranger} is not in its manifest, so it is ignored\n" in ended.out
    assert extra.exists() and notes.exists()
    assert_same(run_dir, reference)


@pytest.mark.long
def test_a_checkpoint_that_is_damaged_twice_is_set_aside_twice(
    run_dir: Path, command: Command, reference: Path
):
    for _ in range(2):
        flip_bit(run_dir / "checkpoints" / "update-000004" / "model.safetensors")
        assert "1 damaged" in command("repair", run_dir).out
        assert command("train", run_dir).status == 0
        shutil.rmtree(run_dir / "checkpoints" / "update-000006")
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.long
def test_the_command_that_repair_names_makes_shards_of_past_stages_again(
    run_dir: Path, command: Command, reference: Path
):
    bad = shard_path(run_dir, 0, 1)
    bad.unlink()
    assert (
        f"`mugrpo train {run_dir}` goes on and makes what it needs again"
        in command("repair", run_dir).out
    )
    assert command("train", run_dir).status == 0
    assert bad.exists()
    assert_same(run_dir, reference)


@pytest.mark.long
def test_a_metrics_line_that_is_not_json_is_named_and_repair_keeps_the_others(
    run_dir: Path, command: Command, reference: Path
):
    metrics = run_dir / "metrics.jsonl"
    metrics.write_text("garbage\n" + metrics.read_text())
    accepted(run_dir)
    ended = command("train", run_dir)
    stopped(ended, f"{metrics}, line 1 is not a metrics line", "`mugrpo repair")
    repaired = command("repair", run_dir).out
    assert f"{metrics} has lines that cannot be read" in repaired
    assert "those of 0 of 4 updates are lost" in repaired
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)
