"""Bakeoffs: several methods on one stage's stored rollouts.

The run's own method gives the run's own bits.
"""

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from mugrpo.cli import main
from mugrpo.config.run import PRESETS
from mugrpo.extensions.lab import bakeoff
from mugrpo.extensions.lab.bakeoff import table
from tests.faults.harm import contents, flip_bit, refused, resume_words, stopped
from tests.runs import (
    Command,
    assert_same,
    checkpoints,
    final_weights,
    finished,
    mugrpo,
    read_metrics,
    unfinished,
)

pytestmark = pytest.mark.usefixtures("no_report")

OWN = "mu-grpo"  # the tiny run's own method
BOTH = ("--objectives", "mu-grpo,grpo")


@pytest.fixture
def run(reference: Path, tmp_path: Path) -> Path:
    """A finished run."""
    return Path(shutil.copytree(reference, tmp_path / "run"))


@pytest.fixture(scope="module")
def compared(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with two methods on its first stage. Tests read or copy it."""
    run_dir = tmp_path_factory.mktemp("compared") / "run"
    shutil.copytree(reference, run_dir)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bakeoff, "write_report", lambda _, out: out)
        assert main(["bakeoff", str(run_dir), *BOTH]) == 0
    return run_dir


@pytest.fixture
def copy(compared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compared, tmp_path / "copy", symlinks=True))


def home(run_dir: Path, stage: int = 0) -> Path:
    return run_dir / f"bakeoff/stage-{stage:03d}"


def updates(run_dir: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(run_dir) if line["kind"] == "update"]


def untimed(text: str) -> list[str]:
    """Return the lines of a table without their last column, the seconds."""
    return [line.rpartition(" | ")[0] for line in text.splitlines()]


def test_every_method_has_the_runs_own_rollouts_and_scores_and_differs_by_its_updates(compared):
    """The first update is on-policy, where no ratio is clipped or vetoed; grpo clips the third."""
    for name in ("mu-grpo", "grpo"):
        arm = home(compared) / name
        for kind in ("rollouts", "scores"):
            for file in (compared / "stages/000" / kind).iterdir():
                assert (arm / "stages/000" / kind / file.name).samefile(file)
        assert not any(path.is_symlink() for path in arm.rglob("*"))
    assert untimed((home(compared) / "table.md").read_text())[0].startswith("| method ")
    own, other = (updates(home(compared) / name) for name in ("mu-grpo", "grpo"))
    assert [line["update"] for line in own] == [1, 2, 3]
    assert own[0]["grad_norm"] == other[0]["grad_norm"]
    assert own[2]["clipped_fraction"] == 0 and other[2]["clipped_fraction"] > 0
    assert [line["lr"] for line in own] == [line["lr"] for line in other]


@pytest.mark.parametrize(("stage", "last"), [(0, 3), (1, 6)])
def test_the_runs_own_method_ends_in_the_runs_own_bits(run, command, stage, last):
    before = contents(run)
    ended = command("bakeoff", run, "--stage", stage, "--objectives", OWN)
    assert (ended.status, ended.err) == (0, "")
    arm = home(run, stage) / OWN
    assert final_weights(arm, last) == final_weights(run, last)
    expected = [line for line in updates(run) if line["update"] <= last]
    assert updates(arm) == expected
    scores = {
        line["update"]: line["accuracy"]
        for line in read_metrics(run)
        if line["kind"] == "evaluation"
    }
    row = (home(run, stage) / "table.md").read_text().splitlines()[-1]
    cells = [cell.strip() for cell in row.split("|")[1:4]]
    assert [cell[:5] for cell in cells[1:]] == [f"{scores[u]:.3f}" for u in (last - 3, last)]
    after = {p: data for p, data in contents(run).items() if p.parts[0] != "bakeoff"}
    assert after == before


@pytest.mark.long
@pytest.mark.promise("bakeoff")
def test_a_run_trains_to_the_same_bits_after_a_bakeoff(run_dir, command, reference):
    """It was killed in its fifth update, so the stage that is compared is only half trained on."""
    assert command("bakeoff", run_dir, "--stage", 1, *BOTH).status == 0
    assert final_weights(home(run_dir, 1) / OWN) == final_weights(reference)
    assert command("train", run_dir).status == 0
    shutil.rmtree(run_dir / "bakeoff")
    assert_same(run_dir, reference)


@pytest.mark.long
@pytest.mark.promise("bakeoff")
@pytest.mark.parametrize(
    ("place", "nth", "act"),
    [
        ("before a publish", 1, "SIGKILL"),  # the first method's folder
        ("gradient", 2, "SIGKILL"),
        pytest.param("checkpoint", 2, "SIGKILL", marks=pytest.mark.long),
        pytest.param("evaluation without metrics line", 1, "SIGKILL", marks=pytest.mark.long),
        pytest.param("gradient", 5, "SIGKILL", marks=pytest.mark.long),
        ("gradient", 6, "SIGTERM"),
    ],
)
def test_a_bakeoff_that_is_killed_and_run_again_gives_the_same_table(
    compared, run, command, place, nth, act
):
    ended = mugrpo("bakeoff", run, *BOTH, at=place, nth=nth, act=act)
    words = ["bakeoff", str(run), *BOTH]
    if act == "SIGTERM":
        assert ended.status == 3
        words = resume_words(ended)
    else:
        assert ended.status == -signal.SIGKILL
    assert not (home(run) / "table.md").exists()
    assert command(*words).status == 0
    tables = [untimed((home(d) / "table.md").read_text()) for d in (run, compared)]
    assert tables[0] == tables[1]
    for name in ("mu-grpo", "grpo"):
        arms = home(run) / name, home(compared) / name
        assert final_weights(arms[0], 3) == final_weights(arms[1], 3)
        assert read_metrics(arms[0]) == read_metrics(arms[1])
    assert unfinished(run) == ()


@pytest.mark.long
def test_all_means_every_preset(run: Path, command: Command):
    ended = command("bakeoff", run, "--stage", 1, "--objectives", "all", "--evaluation.every", 0)
    assert (ended.status, ended.err) == (0, "")
    names = {folder.name for folder in home(run, 1).iterdir() if folder.is_dir()}
    assert names == set(PRESETS)
    assert f"({len(names)} of {len(names)})" in ended.out
    rows = (home(run, 1) / "table.md").read_text().splitlines()[2:]
    assert {row.split("|")[1].strip() for row in rows} == names
    assert all(checkpoints(home(run, 1) / name)[-1] == 6 for name in names)


def update(number: int, kl: float, tv: float, ratio: float | None, seconds: float, **shares: float):
    values = {"kl_behavior": kl, "tv_token": tv, "ratio/negative/max": ratio, **shares}
    times = {"time/update": seconds - 0.5, "time/read": 0.5}
    return {"kind": "update", "update": number, **values, **times}


def evaluation(number: int, accuracy: float | None, low: float = 0.1, high: float = 0.75):
    interval = {"accuracy": accuracy, "accuracy_low": low, "accuracy_high": high}
    return {"kind": "evaluation", "update": number, **interval}


def test_the_table_by_hand():
    before = [evaluation(4, 0.25), update(4, 9.0, 0.9, 9.0, 90.0, clipped_fraction=0.9)]
    worse = [
        *before,
        update(5, 0.0, 0.0, 1.0, 1.0, clipped_fraction=0.0, vetoed_fraction=0.05),
        update(6, 0.5, 0.04, 3.5, 2.0, clipped_fraction=0.1, vetoed_fraction=0.05),
        update(7, 0.01234, 0.02, None, 9.0, clipped_fraction=0.3, vetoed_fraction=0.1),
        evaluation(7, 0.2),
    ]
    better = [*before, update(5, 0.125, 0.25, None, 3.0), evaluation(5, 0.5, 0.125)]
    unknown = [*before, update(5, 0.125, 0.25, 2.0, 3.0), evaluation(5, None)]
    lines = {"worse": worse, "z": better, "a": better, "unknown": unknown}
    head, rule, *rows = re.sub(" +", " ", table(lines, 4)).splitlines()
    assert head.count("|") == rule.count("|") == 9
    # The interval is that of the evaluation's line. Of the worse one: shares 0.05, 0.15 and 0.4 of
    # three updates; the mean of 1, 2 and 9 seconds.
    before_, after_ = "0.250 (0.100 to 0.750)", "0.500 (0.125 to 0.750)"
    assert rows == [
        f"| a | {before_} | {after_} | 0.125 | 0.25 | | 0.0% | 3 |",
        f"| z | {before_} | {after_} | 0.125 | 0.25 | | 0.0% | 3 |",
        f"| worse | {before_} | 0.200 (0.100 to 0.750) | 0.0123 | 0.02 | 3.5 | 20.0% | 4 |",
        f"| unknown | {before_} | not measured | 0.125 | 0.25 | 2 | 0.0% | 3 |",
    ]
    (only,) = table({"none": before}, 4).splitlines()[2:]
    assert re.sub(" +", " ", only) == f"| none | {before_} | {before_} | | | | | |"


@pytest.mark.long
def test_methods_take_the_groups_of_a_surplus_that_vary(tmp_path: Path, command: Command):
    run_dir, names = tmp_path / "run", f"{OWN},dapo"
    own = ("--sampling.surplus", 2, "--optimizer.lr", "3e-4", "--checkpoint.every", 1)
    finished(run_dir, *own)
    assert command("bakeoff", run_dir, "--objectives", names).status == 0
    assert final_weights(home(run_dir) / OWN, 3) == final_weights(run_dir, 3)
    assert [line["zero_variance_share"] for line in updates(home(run_dir) / "dapo")] == [0.0] * 3


@pytest.mark.long
def test_trained_methods_are_not_trained_again_even_if_the_run_is_moved(compared, copy, command):
    before = {p: p.stat().st_mtime_ns for p in home(copy).glob("*/checkpoints/*/*.safetensors")}
    ended = command("bakeoff", copy, *BOTH)
    assert ended.status == 0 and before
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert (home(copy) / "table.md").read_text() == (home(compared) / "table.md").read_text()


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
def test_an_unknown_method_or_stage_is_refused_at_once(run, command, words, sentence):
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


def test_a_method_that_was_trained_on_other_scores_is_refused(copy, tmp_path, command, stricter):
    """A method that the comparison does not have is trained on the new scores."""
    assert command("score", copy, "--stage", 0, "--again").status == 0
    before = contents(copy)
    ended = command("bakeoff", copy, "--objectives", "grpo")
    refused(ended, f"{home(copy) / 'grpo'} was made with other rollouts, scores or options; remove")
    assert contents(copy) == before
    method = tmp_path / "own.toml"
    method.write_text('preset = "grpo"\n[objective]\nname = "grpo"\nratio_clip = [0.7, 1.3]\n')
    assert command("bakeoff", copy, "--objectives", method).status == 0


def test_scoring_again_with_the_same_judge_keeps_a_comparison_valid(copy, command):
    files = {p: p.read_bytes() for p in (copy / "stages/000/scores").glob("*.parquet")}
    assert command("score", copy, "--stage", 0, "--again").status == 0
    assert {p: p.read_bytes() for p in files} == files
    ended = command("bakeoff", copy, *BOTH)
    assert ended.status == 0, ended.err
