"""Changes between a start and a resume of a run whose stages end early."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.faults.harm import accepted, contents, refused
from tests.runs import EARLY, Command, checkpoints, final_weights, finished, killed, read_metrics

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


def test_more_updates_than_the_current_stage_plans_are_refused_and_can_be_undone(
    last_stage: Path, tmp_path: Path, command: Command, early: Path
):
    run_dir = Path(shutil.copytree(last_stage, tmp_path / "run"))
    before = contents(run_dir / "stages")
    ended = command("train", run_dir, "--schedule.stages", "3", "--force")
    plan = run_dir / "stages/002/plan"
    refused(ended, f"{plan} has 3 batches, the schedule 4: undo the change of schedule.stages")
    assert contents(run_dir / "stages") == before
    assert command("train", run_dir, "--schedule.stages", "2", "--force").status == 0
    assert final_weights(run_dir, 8) == final_weights(early, 8)


def test_fewer_updates_end_the_current_stage_where_the_run_ends(tmp_path: Path, command: Command):
    """3 x 4 updates become 2 x 4 when the third of the stages 0-3, 3-5 and 5-9 has made one."""
    run_dir = tmp_path / "run"
    constant = ("--optimizer.lr_schedule", "constant", "--evaluation.every", "0")
    killed(run_dir, "gradient", 7, *EARLY, *constant, "--schedule.stages", "3")
    assert checkpoints(run_dir)[-1] == 6
    starts = stage_starts(run_dir)
    assert starts[-1] < 6
    assert command("train", run_dir, "--schedule.stages", "2", "--force").status == 0
    assert checkpoints(run_dir)[-1] == 8 and stage_starts(run_dir)[: len(starts)] == starts
    finished(tmp_path / "eight", *EARLY, *constant)
    assert final_weights(run_dir, 8) == final_weights(tmp_path / "eight", 8)
