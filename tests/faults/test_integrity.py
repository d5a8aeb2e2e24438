"""What is promised of a run's files: for each kind, each harm is found, and `repair` is right.

Right means: the run ends in the bits of an uninterrupted one, or the remedy is refused in a
sentence. Never is a number that was changed taken for the truth, not even if whoever changed it
made the file's own checksum fit.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harm import contents, flip_bit, refused, stopped, summed, truncate
from tests.runs import (
    Command,
    assert_same,
    final_weights,
    killed,
    mugrpo,
    read_metrics,
    shard_path,
    shards,
)

pytest_plugins = ["tests.run_fixtures"]

Harm = Callable[[Path], object]


def number(path: Path, *keys: str, sums: bool = False) -> None:
    """Change a number of a JSON file. With `sums`, its own checksum fits."""
    stored = inner = json.loads(path.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = inner[keys[-1]] + 1
    path.write_text(json.dumps(stored, indent=1) + "\n")
    if sums:
        summed(path)


def in_line(path: Path, line: int, key: str, *, sums: bool = False) -> None:
    """Change a number of a line of a metrics file. With `sums`, its own checksum fits."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert lines[line][key] != 0.875
    lines[line][key] = 0.875
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    if sums:
        summed(path)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


RATE, TEMPERATURE = ("config", "optimizer", "lr"), ("config", "rollouts", "temperature")
ROLLOUTS, SCORES = "stages/001/rollouts", "stages/001/scores"
NEWEST, EVALUATION = "checkpoints/update-000004", "evaluations/update-000003"
HARMS: list[tuple[str, Harm]] = [
    *(("config.json", harm) for harm in (flip_bit, truncate, Path.unlink, folder_instead)),
    ("config.json", lambda path: number(path, *RATE)),
    ("config.json", lambda path: number(path, *RATE, sums=True)),
    ("config.json", lambda path: number(path, *TEMPERATURE, sums=True)),
    *((f"{ROLLOUTS}/manifest.json", harm) for harm in (flip_bit, truncate, folder_instead)),
    (f"{SCORES}/manifest.json", lambda path: number(path, "shards", "1", "reward_sum")),
    (f"{SCORES}/manifest.json", lambda path: path.write_text("{}")),
    ("stages/001/plan/manifest.json", flip_bit),
    *((f"{ROLLOUTS}/shard-00002.parquet", harm) for harm in (flip_bit, truncate, Path.unlink)),
    (f"{SCORES}/shard-00002.parquet", flip_bit),
    (f"{SCORES}/shard-00002.parquet", folder_instead),
    ("stages/001/plan/shard-00000.parquet", flip_bit),
    (f"{NEWEST}/model.safetensors", flip_bit),
    (f"{NEWEST}/optimizer.safetensors", truncate),
    (f"{NEWEST}/trainer.json", Path.unlink),
    (f"{NEWEST}/stages.json", lambda path: number(path, "stage")),
    (f"{NEWEST}/sha256.json", lambda path: path.write_text("{}")),
    (f"{NEWEST}/sha256.json", folder_instead),
]


@pytest.mark.promise("changed")
@pytest.mark.parametrize(("name", "harm"), HARMS)
def test_a_changed_file_is_named_and_after_repair_the_run_ends_in_the_same_bits(
    run_dir: Path, command: Command, reference: Path, name: str, harm: Harm
):
    harm(run_dir / name)
    before = contents(run_dir)
    del before[Path("metrics.jsonl")]  # an update before the damage may be made
    named = run_dir / (NEWEST if name.startswith(NEWEST) else name)
    stopped(command("train", run_dir), f"{named}", "`mugrpo repair")
    after = contents(run_dir)
    assert {path: after.get(path) for path in before} == before
    repaired = command("repair", run_dir)
    assert repaired.status == 0 and "1 damaged" in repaired.out and f"{named}" in repaired.out
    assert command("repair", run_dir).out.endswith("no damage found\n")
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


# Checkpoints confirm 4, 5 and 8 lines: evaluation 0, refresh 0, updates 1 and 2; update 3;
# evaluation 3, refresh 3, update 4.
@pytest.mark.promise("changed")
@pytest.mark.parametrize(
    ("harm", "kept", "lost"),
    [
        (lambda path: in_line(path, 0, "accuracy"), 0, 4),
        (lambda path: in_line(path, 0, "accuracy", sums=True), 0, 4),
        (lambda path: in_line(path, 4, "loss", sums=True), 4, 2),
        (lambda path: in_line(path, 5, "accuracy", sums=True), 5, 1),
        (flip_bit, None, None),
        (truncate, 5, 1),
        (lambda path: path.write_text(""), 0, 4),
        (lambda path: path.write_text("garbage\n" + path.read_text()), 0, 4),
        (lambda path: path.write_text("[" * 10_000 + "\n"), 0, 4),
        (Path.unlink, 0, 4),
        (folder_instead, 0, 4),
    ],
)
def test_repair_keeps_only_lines_that_a_checkpoint_confirms_and_says_what_is_lost(
    run_dir: Path, command: Command, reference: Path, harm: Harm, kept: int | None, lost: int | None
):
    metrics, before = run_dir / "metrics.jsonl", read_metrics(run_dir)
    harm(metrics)
    stopped(command("train", run_dir), f"{metrics}", "`mugrpo repair")
    out = command("repair", run_dir).out
    if kept is not None:
        assert f"first {kept} lines" in out and f"those of {lost} of 4 updates are lost" in out
        assert read_metrics(run_dir)[:-1] == before[:kept]
    assert command("repair", run_dir).out.endswith("no damage found\n")
    assert command("train", run_dir).status == 0
    true = read_metrics(reference)
    found = [line for line in read_metrics(run_dir) if line["kind"] != "repair"]
    assert found and [line for line in found if line not in true] == []
    assert final_weights(run_dir) == final_weights(reference)


@pytest.fixture
def whole(reference: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(reference, tmp_path / "run"))


@pytest.mark.promise("changed")
@pytest.mark.parametrize("sums", [False, True])
def test_an_evaluation_after_the_last_checkpoint_is_confirmed_by_its_shards(
    whole: Path, command: Command, reference: Path, sums: bool
):
    metrics = whole / "metrics.jsonl"
    assert read_metrics(whole)[-1]["kind"] == "evaluation"
    in_line(metrics, -1, "accuracy", sums=sums)
    stopped(command("train", whole), f"{metrics}", "`mugrpo repair")
    assert "1 damaged" in command("repair", whole).out
    assert command("train", whole).status == 0
    assert_same(whole, reference)


def test_lines_of_updates_that_no_checkpoint_holds_are_made_again(
    tmp_path: Path, command: Command, reference: Path
):
    """It is killed before the checkpoint of update 6, in whose place there could be any number."""
    run_dir = tmp_path / "run"
    killed(run_dir, "gradient", 6)
    assert read_metrics(run_dir)[-1]["update"] == 5
    in_line(run_dir / "metrics.jsonl", -1, "loss", sums=True)
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.parametrize("harm", [Path.unlink, truncate, partial(number, sums=True)])
def test_a_config_that_no_checkpoint_knows_is_refused_and_never_guessed(
    scored_run: Path, tmp_path: Path, command: Command, harm: Harm
):
    """Nothing else has a copy of it before the first checkpoint."""
    run_dir = Path(shutil.copytree(scored_run, tmp_path / "run"))
    config = run_dir / "config.json"
    if isinstance(harm, partial):
        number(config, *RATE)
    else:
        harm(config)
    ended = command("repair", run_dir)
    refused(ended, f"{run_dir}")
    assert not config.exists() or "begin the run again in a new --run-dir" in ended.err


def test_a_change_that_was_forced_is_no_damage_before_and_after_the_next_checkpoint(
    run_dir: Path, command: Command
):
    words = ("train", run_dir, "--optimizer.lr=2e-3")
    refused(command(*words), "optimizer.lr", "--force")
    assert mugrpo(*words, "--force", at="gradient").status == -signal.SIGKILL
    assert command("report", run_dir).status == command("train", run_dir).status == 0
    assert json.loads((run_dir / "config.json").read_text())["config"]["optimizer"]["lr"] == 2e-3
    assert command("repair", run_dir).out.endswith("no damage found\n")


def test_a_shard_that_fits_its_manifest_but_not_the_checkpoint_is_refused_unless_forced(
    run_dir: Path, command: Command
):
    """Shard 1 of the scores takes the place of shard 2, with its entry."""
    manifest = run_dir / SCORES / "manifest.json"
    shutil.copy(shard_path(run_dir, 1, 1, "scores"), shard_path(run_dir, 1, 2, "scores"))
    stored = json.loads(manifest.read_text())
    stored["shards"]["2"]["sha256"] = stored["shards"]["1"]["sha256"]
    stored["shards"]["2"]["bytes"] = stored["shards"]["1"]["bytes"]
    manifest.write_text(json.dumps(stored))
    summed(manifest)
    changed = shard_path(run_dir, 1, 2, "scores")
    stopped(command("train", run_dir), f"{changed} is not the one that update-000004", "--force")
    assert command("train", run_dir, "--force").status == 0


@pytest.mark.promise("changed")
@pytest.mark.parametrize(
    "name",
    [f"{ROLLOUTS}/manifest.json", f"{SCORES}/manifest.json", "stages/001", "stages/000", NEWEST],
)
def test_what_is_missing_is_made_again_as_if_it_had_not_been_published(
    run_dir: Path, command: Command, reference: Path, name: str
):
    path = run_dir / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


def test_without_a_good_checkpoint_the_run_starts_over_on_its_shards(
    run_dir: Path, command: Command, reference: Path
):
    for folder in run_dir.glob("checkpoints/*"):
        (folder / "model.safetensors").unlink()
    metrics = (run_dir / "metrics.jsonl").read_bytes()
    assert "4 damaged" in command("repair", run_dir).out
    again = command("train", run_dir)
    assert again.status == 0 and "resuming" not in again.out
    assert (run_dir / "metrics.jsonl").read_bytes().startswith(metrics.splitlines()[0])
    assert_same(run_dir, reference)


@pytest.mark.parametrize("kind", ["rollouts", "scores"])
@pytest.mark.parametrize("harm", [flip_bit, truncate, Path.unlink])
def test_a_damaged_evaluation_is_set_aside_and_evaluate_makes_it_again(
    whole: Path, command: Command, reference: Path, kind: str, harm: Harm
):
    harm(whole / EVALUATION / kind / "shard-00000.parquet")
    assert f"{whole / EVALUATION} has a" in (out := command("repair", whole).out), out
    assert command("evaluate", whole, "--update", 3).status == 0
    shutil.rmtree(whole / f"{EVALUATION}.bad")
    assert shards(whole) == shards(reference)
    assert read_metrics(whole) == read_metrics(reference)


@pytest.mark.parametrize("harm", [flip_bit, truncate])
def test_damaged_samples_are_set_aside_and_reports_go_without_them(
    whole: Path, command: Command, harm: Harm
):
    harm(whole / "samples/update-000001.json")
    assert command("report", whole).status == 0
    assert "the run goes on without it" in command("repair", whole).out
    assert command("train", whole).status == 0


def test_a_missing_checkpoint_that_a_bad_shard_needs_is_named_with_a_remedy_that_works(
    run_dir: Path, command: Command, reference: Path
):
    gone = run_dir / "checkpoints/update-000003"
    shutil.rmtree(gone)
    shard_path(run_dir, 1, 2).unlink()
    command("repair", run_dir)
    stopped(command("train", run_dir), f"{gone} is needed, but gone; remove the later checkpoints")
    shutil.rmtree(run_dir / NEWEST)
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


def test_files_that_nothing_lists_are_reported_and_not_read(
    run_dir: Path, command: Command, reference: Path
):
    extra = shard_path(run_dir, 1, 3)
    shutil.copy(shard_path(run_dir, 1, 0), extra)
    ended = command("repair", run_dir)
    assert ended.status == 0
    assert f"{extra} is not in its manifest, so it is ignored\n" in ended.out
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.parametrize("name", ["config.json", "lock", NEWEST, f"{ROLLOUTS}/shard-00001.parquet"])
def test_a_file_without_permission_is_not_taken_for_damage(
    run_dir: Path, command: Command, name: str
):
    path = run_dir / name
    mode = path.stat().st_mode
    for word in ("train", "repair"):
        with as_others():
            path.chmod(0)
            ended = command(word, run_dir)
            path.chmod(mode)
        assert ended.status in (2, 3) and ended.err.count("\n") == 1, ended
    assert not list(run_dir.rglob("*.bad"))


@contextmanager
def as_others() -> Iterator[None]:
    """Take from root, if that runs the tests, the right to read what it has no permission for."""
    if os.getuid():
        yield
        return
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    before: Any = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    fewer = (ctypes.c_uint32 * 6)(before[0] & ~0b110, *before[1:])
    assert libc.capset(header, fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0


@pytest.mark.promise("copy")
@pytest.mark.parametrize("cut", [False, True])
def test_a_copy_of_a_run_that_goes_on_meanwhile_is_repaired_and_ends_in_the_same_bits(
    run_dir: Path, command: Command, reference: Path, tmp_path: Path, cut: bool
):
    """Checkpoints are copied last. If it is cut then, they know of more lines than the copy has."""
    copy, others = tmp_path / "copy", shutil.ignore_patterns("checkpoints", "lock")
    shutil.copytree(run_dir, copy, ignore=others)
    assert command("train", run_dir).status == 0
    shutil.copytree(run_dir / "checkpoints", copy / "checkpoints")
    if not cut:
        shutil.copytree(run_dir, copy, ignore=others, dirs_exist_ok=True)
    assert command("repair", copy).out.endswith("no damage found\n") == (not cut)
    assert command("train", copy).status == 0
    assert final_weights(copy) == final_weights(reference)
    if not cut:
        assert_same(copy, reference)
