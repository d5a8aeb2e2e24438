"""Comparisons of methods that are refused, and changes of a run after a comparison."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mugrpo.cli import main
from mugrpo.extensions.lab import bakeoff
from tests.faults.harm import contents, flip_bit, refused, stopped
from tests.runs import Command, checkpoints, killed, write_config

pytest_plugins = ["tests.run_fixtures"]
pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture
def run(reference: Path, tmp_path: Path) -> Path:
    """A finished run."""
    return Path(shutil.copytree(reference, tmp_path / "run"))


def own_method(folder: Path) -> Path:
    """Write the config file of a custom method."""
    path = folder / "own.toml"
    path.write_text('preset = "grpo"\n[objective]\nname = "grpo"\nratio_clip = [0.7, 1.3]\n')
    return path


@pytest.fixture
def method(tmp_path: Path) -> Path:
    return own_method(tmp_path)


@pytest.fixture(scope="module")
def compared_run(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with the custom method on its first stage. Tests copy it."""
    folder = tmp_path_factory.mktemp("compared")
    run_dir = Path(shutil.copytree(reference, folder / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bakeoff, "write_report", lambda _, out: out)
        assert main(["bakeoff", str(run_dir), "--objectives", str(own_method(folder))]) == 0
    return run_dir


@pytest.fixture
def compared(compared_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compared_run, tmp_path / "run", symlinks=True))


ARM = "bakeoff/stage-000/own"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--objectives", "grpo,grop"], "'grop' is not a method: name presets (asymre, cispo, "),
        (["--objectives", "grpo,all"], "'all' is not a method"),
        (["--objectives", ""], "'' is not a method"),
        (["--objectives", "none.toml"], "none.toml: there is no such config file"),
        (["--objectives", "grpo", "--stage", "2"], "--stage 2: the run has stages 0 to 1"),
        (["--objectives", "grpo", "--stage", "-1"], "--stage -1: the run has stages 0 to 1"),
    ],
)
def test_an_unknown_method_or_stage_is_refused_before_anything_is_written(
    run: Path, command: Command, words: list[str], sentence: str
):
    before = contents(run)
    refused(command("bakeoff", run, *words), sentence)
    assert contents(run) == before


@pytest.mark.long
def test_a_stage_without_scores_is_refused_with_the_command_to_run_first(
    tmp_path: Path, command: Command
):
    run_dir = tmp_path / "run"
    words = [write_config(tmp_path / "config"), "--run-dir", run_dir]
    compare = ["bakeoff", run_dir, "--objectives", "grpo"]
    refused(command("bakeoff", *words, "--objectives", "grpo"), f"run `mugrpo generate {run_dir} -")
    assert command("generate", *words).status == 0
    refused(command(*compare), f"0 of 3 shards of scores; run `mugrpo score {run_dir} --stage 0` f")
    assert command("score", *words).status == 0
    refused(command(*compare, "--stage", "1"), f"run `mugrpo generate {run_dir} --stage 1` first")
    assert command(*compare).status == 0  # before the run has made an update
    assert checkpoints(run_dir / "bakeoff/stage-000/grpo") == [2, 3]
    assert checkpoints(run_dir) == []


@pytest.mark.parametrize("harm", ["gone", "flipped"])
def test_the_checkpoint_that_the_stage_began_from_is_needed(run: Path, command: Command, harm: str):
    folder = run / "checkpoints/update-000003"
    if harm == "gone":
        shutil.rmtree(folder)
    else:
        flip_bit(folder / "model.safetensors")
    ended = command("bakeoff", run, "--stage", 1, "--objectives", "grpo")
    stopped(ended, f"{folder} ", "is needed, but gone" if harm == "gone" else "mugrpo repair")
    assert not (run / "bakeoff").exists()


@pytest.mark.long
def test_a_method_with_other_options_than_before_is_refused(
    compared: Path, command: Command, method: Path
):
    before = contents(compared)
    method.write_text(method.read_text().replace("1.3", "1.4"))
    ended = command("bakeoff", compared, "--objectives", method)
    refused(ended, f"{compared / ARM} was made with other rollouts, scores or options; remove it")
    assert contents(compared) == before
    shutil.rmtree(compared / ARM)
    assert command("bakeoff", compared, "--objectives", method).status == 0
    stored = json.loads((compared / ARM / "config.json").read_text())["config"]
    assert stored["objective"]["ratio_clip"] == [0.7, 1.4]


def test_a_method_that_was_trained_on_other_scores_is_refused(
    compared: Path, command: Command, method: Path, stricter: None
):
    assert command("score", compared, "--stage", 0, "--again").status == 0
    before = contents(compared)
    ended = command("bakeoff", compared, "--objectives", method)
    refused(ended, f"{compared / ARM} was made with other rollouts, scores or options; remove it")
    assert contents(compared) == before
    # another method is trained on the new scores
    assert command("bakeoff", compared, "--objectives", "grpo").status == 0


def test_a_run_that_another_process_has_locked_is_not_compared(run: Path, command: Command):
    import fcntl

    with open(run / "lock", "a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(command("bakeoff", run, "--objectives", "grpo"), "is locked by another process")


@pytest.mark.long
def test_an_evaluation_that_was_not_due_adds_one_line_and_nothing_else(
    tmp_path: Path, command: Command
):
    """The run is never evaluated, but the table needs the accuracy before its first stage."""
    run_dir = tmp_path / "run"
    killed(run_dir, "gradient", 2, "--evaluation.every", "0")
    stages = contents(run_dir / "stages")
    assert command("bakeoff", run_dir, "--objectives", "grpo").status == 0
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    kinds = [(line["kind"], line["update"]) for line in map(json.loads, lines)]
    assert kinds == [("refresh", 0), ("evaluation", 0)]
    assert contents(run_dir / "stages") == stages


# ---- regressions ----


@pytest.mark.long
def test_a_past_stage_is_compared_even_if_the_judge_has_changed(run: Path, command: Command):
    change = ("--rewards.truncated", "scored", "--force")
    assert command("train", run, *change).status == 0  # nothing to do, but the option is stored
    ended = command("bakeoff", run, "--objectives", "grpo")
    assert ended.status == 0, ended.err


def test_scoring_again_with_the_same_judge_keeps_a_comparison_valid(
    compared: Path, command: Command, method: Path
):
    files = {p: p.read_bytes() for p in (compared / "stages/000/scores").glob("*.parquet")}
    assert command("score", compared, "--stage", 0, "--again").status == 0
    assert {p: p.read_bytes() for p in files} == files
    ended = command("bakeoff", compared, "--objectives", method)
    assert ended.status == 0, ended.err
