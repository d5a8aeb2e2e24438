"""What is promised of a run's files: for each kind, each harm is found, and `repair` is right.

Right means: the run ends in the bits of an uninterrupted one, or the remedy is refused in a
sentence. Never is a number that was changed taken for the truth, not even if whoever changed it
made the file's own checksum fit.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cases import some
from tests.faults.harm import contents, flip_bit, refused, stopped, summed, truncate
from tests.runs import (
    Command,
    assert_same,
    final_weights,
    killed,
    mugrpo,
    read_metrics,
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


RATE, TEMPERATURE = ("config", "optimizer", "lr"), ("config", "rollouts", "temperature")
ROLLOUTS, SCORES = "stages/001/rollouts", "stages/001/scores"
NEWEST, EVALUATION = "checkpoints/update-000004", "evaluations/update-000003"
HARMS: list[tuple[str, Harm]] = [
    ("config.json", lambda path: number(path, *RATE, sums=True)),
    (f"{SCORES}/manifest.json", lambda path: number(path, "shards", "1", "reward_sum")),
    (f"{NEWEST}/model.safetensors", flip_bit),
    *(("config.json", harm) for harm in (flip_bit, truncate, Path.unlink)),
    ("config.json", lambda path: number(path, *TEMPERATURE, sums=True)),
    (f"{ROLLOUTS}/manifest.json", truncate),
    ("stages/001/plan/manifest.json", flip_bit),
    *((f"{ROLLOUTS}/shard-00002.parquet", harm) for harm in (flip_bit, Path.unlink)),
    (f"{SCORES}/shard-00002.parquet", flip_bit),
    ("stages/001/plan/shard-00000.parquet", flip_bit),
    (f"{NEWEST}/optimizer.safetensors", truncate),
    (f"{NEWEST}/trainer.json", Path.unlink),
    (f"{NEWEST}/stages.json", lambda path: number(path, "stage")),
    (f"{NEWEST}/sha256.json", lambda path: path.write_text("{}")),
]


@pytest.mark.promise("changed")
@pytest.mark.parametrize(("name", "harm"), some(3, HARMS))
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
    some(
        1,
        [
            (lambda path: in_line(path, 4, "loss", sums=True), 4, 2),
            (lambda path: in_line(path, 0, "accuracy"), 0, 4),
            (lambda path: in_line(path, 5, "accuracy", sums=True), 5, 1),
            (flip_bit, None, None),
            (truncate, 5, 1),
            (lambda path: path.write_text("garbage\n" + path.read_text()), 0, 4),
            (Path.unlink, 0, 4),
        ],
    ),
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
@pytest.mark.parametrize("sums", some(1, [True, False]))
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


@pytest.mark.long
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


@pytest.mark.parametrize("harm", [Path.unlink, partial(number, sums=True)])
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


@pytest.mark.long
def test_a_change_that_was_forced_is_no_damage_before_and_after_the_next_checkpoint(
    run_dir: Path, command: Command
):
    words = ("train", run_dir, "--optimizer.lr=2e-3")
    refused(command(*words), "optimizer.lr", "--force")
    assert mugrpo(*words, "--force", at="gradient").status == -signal.SIGKILL
    assert command("report", run_dir).status == command("train", run_dir).status == 0
    assert json.loads((run_dir / "config.json").read_text())["config"]["optimizer"]["lr"] == 2e-3
    assert command("repair", run_dir).out.endswith("no damage found\n")


@pytest.mark.promise("changed")
@pytest.mark.parametrize(
    "name",
    some(1, [NEWEST, f"{ROLLOUTS}/manifest.json", f"{SCORES}/manifest.json", "stages/001"]),
)
def test_what_is_missing_is_made_again_as_if_it_had_not_been_published(
    run_dir: Path, command: Command, reference: Path, name: str
):
    path = run_dir / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "harm"), [("rollouts", flip_bit), ("scores", Path.unlink)])
def test_a_damaged_evaluation_is_set_aside_and_evaluate_makes_it_again(
    whole: Path, command: Command, reference: Path, kind: str, harm: Harm
):
    harm(whole / EVALUATION / kind / "shard-00000.parquet")
    assert f"{whole / EVALUATION} has a" in (out := command("repair", whole).out), out
    assert command("evaluate", whole, "--update", 3).status == 0
    shutil.rmtree(whole / f"{EVALUATION}.bad")
    assert shards(whole) == shards(reference)
    assert read_metrics(whole) == read_metrics(reference)


@pytest.mark.promise("copy")
@pytest.mark.parametrize("cut", some(1, [False, True]))
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
