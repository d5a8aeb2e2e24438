"""Comparisons of methods that are refused, and changes of a run after a comparison."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mugrpo.cli import main
from mugrpo.extensions.lab import bakeoff
from tests.faults.harm import contents, flip_bit, refused, stopped
from tests.runs import Command

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


def test_a_method_that_was_trained_on_other_scores_is_refused(compared, command, method, stricter):
    assert command("score", compared, "--stage", 0, "--again").status == 0
    before = contents(compared)
    ended = command("bakeoff", compared, "--objectives", method)
    refused(ended, f"{compared / ARM} was made with other rollouts, scores or options; remove it")
    assert contents(compared) == before
    # another method is trained on the new scores
    assert command("bakeoff", compared, "--objectives", "grpo").status == 0


# ---- regressions ----


def test_scoring_again_with_the_same_judge_keeps_a_comparison_valid(compared, command, method):
    files = {p: p.read_bytes() for p in (compared / "stages/000/scores").glob("*.parquet")}
    assert command("score", compared, "--stage", 0, "--again").status == 0
    assert {p: p.read_bytes() for p in files} == files
    ended = command("bakeoff", compared, "--objectives", method)
    assert ended.status == 0, ended.err
