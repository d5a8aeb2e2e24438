"""Changes between a start and a resume of a run whose stages end early."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.faults.harm import accepted
from tests.runs import EARLY, Command, checkpoints, final_weights, killed, read_metrics

pytestmark = pytest.mark.long

pytest_plugins = ["tests.run_fixtures"]

NO_STAGE_END = (*EARLY, "--checkpoint.stage_end", "false")


@pytest.fixture(scope="module")
def last_stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in the last update of its last stage."""
    run_dir = tmp_path_factory.mktemp("early") / "run"
    killed(run_dir, "gradient", 8, *EARLY)
    assert checkpoints(run_dir) == [2, 3, 4, 5, 6]
    return run_dir


@pytest.fixture(scope="module")
def without_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in the stage after an early end that no checkpoint has."""
    run_dir = tmp_path_factory.mktemp("early") / "run"
    killed(run_dir, "engine batch", 12, *NO_STAGE_END)
    assert checkpoints(run_dir) == [2] and policy_steps(run_dir, 1) == {3}
    return run_dir


def policy_steps(run_dir: Path, stage: int) -> set[int]:
    """Return the policy steps of a stage's rollout shards."""
    manifest = json.loads((run_dir / f"stages/{stage:03d}/rollouts/manifest.json").read_text())
    return {entry["policy_step"] for entry in manifest["shards"].values()}


def stage_starts(run_dir: Path) -> list[int]:
    return [line["update"] for line in read_metrics(run_dir) if line["kind"] == "refresh"]


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        (("--optimizer.lr", "4e-4"), None),
        # no stage ends early any more
        (("--stage_until.name", "all_updates"), [0, 4]),
        pytest.param(("--stage_until.limit", "0.9"), [0, 4], marks=pytest.mark.long),
    ],
)
def test_a_forced_change_sets_aside_rollouts_after_an_early_end_without_a_checkpoint(
    without_checkpoint: Path,
    tmp_path: Path,
    command: Command,
    change: tuple[str, str],
    begins: list[int] | None,
):
    """The run then makes the same updates as one that never had those rollouts."""
    never, run_dir = tmp_path / "never", tmp_path / "run"
    for folder in (never, run_dir):
        shutil.copytree(without_checkpoint, folder)
    assert command("train", run_dir, *change, "--force").status == 0
    assert (run_dir / "stages/001.bad/rollouts").is_dir()
    assert begins is None or stage_starts(run_dir) == begins
    for stage, start in enumerate(stage_starts(run_dir)):
        assert policy_steps(run_dir, stage) == {start}
    shutil.rmtree(never / "stages/001")
    accepted(never)
    assert command("train", never, *change, "--force").status == 0
    assert final_weights(never, 8) == final_weights(run_dir, 8)
    assert read_metrics(never) == read_metrics(run_dir)


def test_early_ends_in_a_checkpoint_stand_whatever_the_new_limit(
    last_stage: Path, tmp_path: Path, command: Command, early: Path
):
    run_dir = Path(shutil.copytree(last_stage, tmp_path / "run"))
    assert command("train", run_dir, "--stage_until.name", "all_updates", "--force").status == 0
    assert final_weights(run_dir, 8) == final_weights(early, 8)
    assert stage_starts(run_dir) == [0, 3, 5]
