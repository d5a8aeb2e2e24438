"""Links that lead out of a run, and files that are none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import refuse_links_out


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with files, and links that stay in it: to a file, to a folder, and to nothing."""
    run = tmp_path / "runs" / "mine"
    (run / "checkpoints" / "update-000001").mkdir(parents=True)
    (run / "checkpoints" / "update-000001" / "model.safetensors").touch()
    (run / "to_file").symlink_to("checkpoints/update-000001/model.safetensors")
    (run / "to_folder").symlink_to(run / "checkpoints", target_is_directory=True)
    (run / "to_nothing").symlink_to("absent")
    (tmp_path / "precious").write_text("mine")
    refuse_links_out(run)
    return run


@pytest.mark.parametrize("name", ["lock", "checkpoints/update-000001/state.pt", "checkpoints/new"])
@pytest.mark.parametrize("target", ["{}/precious", "{}/runs", "{}/absent", "/dev/null", "../../.."])
def test_a_link_out_of_the_run_is_refused(run: Path, tmp_path: Path, name: str, target: str):
    (run / name).symlink_to(target.format(tmp_path))
    with pytest.raises(UsageError, match=f"{name} is a link out of the run"):
        refuse_links_out(run)


def test_a_link_out_of_the_run_by_way_of_another_is_refused(run: Path, tmp_path: Path):
    (run / "first").symlink_to("second")
    (run / "second").symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match=r"(first|second) is a link out of the run"):
        refuse_links_out(run)


def test_links_in_a_circle_lead_nowhere_else(run: Path):
    (run / "first").symlink_to("second")
    (run / "second").symlink_to("first")
    refuse_links_out(run)


def test_a_pipe_is_refused_without_waiting_for_it(run: Path):
    os.mkfifo(run / "config.json")
    with pytest.raises(UsageError, match=r"config\.json is neither a file nor a folder"):
        refuse_links_out(run)


@pytest.mark.parametrize("name", ["wandb", "handed_over"])
def test_what_no_command_reads_may_hold_links_but_not_be_one(run: Path, tmp_path: Path, name: str):
    """wandb keeps its own log elsewhere, and weights for engines are written again."""
    (run / name / "logs").mkdir(parents=True)
    (run / name / "logs" / "debug.log").symlink_to(tmp_path / "precious")
    refuse_links_out(run)
    (run / "checkpoints" / name).symlink_to(tmp_path)
    with pytest.raises(UsageError, match=f"checkpoints/{name} is a link out of the run"):
        refuse_links_out(run)
    (run / "checkpoints" / name).unlink()
    shutil.rmtree(run / name)
    (run / name).symlink_to(tmp_path)
    with pytest.raises(UsageError, match=f"{name} is a link out of the run"):
        refuse_links_out(run)


def test_a_run_may_itself_be_reached_through_a_link(run: Path, tmp_path: Path):
    (tmp_path / "shortcut").symlink_to(run)
    refuse_links_out(tmp_path / "shortcut")


def test_a_bakeoffs_run_may_link_to_the_run_that_it_is_part_of(run: Path, tmp_path: Path):
    (run / "stages" / "000").mkdir(parents=True)
    method = run / "bakeoff" / "stage-000" / "grpo"
    method.mkdir(parents=True)
    (method / "stages").symlink_to("../../../stages")
    refuse_links_out(method)
    (method / "lock").symlink_to("../../../../../precious")
    with pytest.raises(UsageError, match="lock is a link out of the run"):
        refuse_links_out(method)
