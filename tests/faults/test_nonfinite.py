"""Losses, gradients and weights that are not finite."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mugrpo.config.training import ScheduleOptions
from mugrpo.optimize import gradient
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer
from mugrpo.rollouts.schedule import Schedule
from mugrpo.tasks.embedded import Chain, ChainOptions
from tests.cases import some
from tests.faults.harm import resume_words, stopped
from tests.runs import Command, assert_same, checkpoints, final_weights, read_metrics, write_config


def nan_gradient(part: torch.Tensor, loss_BT: torch.Tensor) -> torch.Tensor:
    """Keep the loss but make its gradient NaN: sqrt has infinite slope at 0, and 0 x inf is NaN."""
    return part + (loss_BT.sum() * 0).sqrt()


Spoil = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SPOILS: dict[str, Spoil] = {
    "nan": lambda part, _: part * math.nan,
    "inf": lambda part, _: part + math.inf,
    "nan gradient": nan_gradient,
}


def poison(monkeypatch: pytest.MonkeyPatch, updates: set[int], how: str = "nan") -> None:
    """Spoil the loss of the given updates."""
    step, reduced = Trainer.step, gradient.reduced_loss
    now = 0

    def noted(trainer: Trainer, experience: Experience, recorder: Any = None) -> dict[str, Any]:
        nonlocal now
        now = trainer.update + 1
        return step(trainer, experience, recorder)

    def spoiled(loss_BT: torch.Tensor, *rest: Any) -> torch.Tensor:
        part = reduced(loss_BT, *rest)
        return SPOILS[how](part, loss_BT) if now in updates else part

    monkeypatch.setattr(Trainer, "step", noted)
    monkeypatch.setattr(gradient, "reduced_loss", spoiled)


def groups_of(stage: int, batch: int) -> list[list[object]]:
    """Return [problem id, occurrence] for the two groups of a batch of the tiny run."""
    problems = Chain(ChainOptions(train_problems=24, eval_problems=4)).train_problems()
    options = ScheduleOptions(stages=2, batches_per_stage=3, problems_per_update=2, group_size=4)
    groups = list(Schedule(options, problems, seed=10).groups(stage))
    return [[problem.id, k] for problem, k in groups[2 * batch : 2 * batch + 2]]


def finite_or(text: str) -> str:
    """Return "finite" for a finite number, and "nan" or "inf" as they are."""
    return "finite" if math.isfinite(float(text)) else text


@pytest.mark.parametrize(
    ("how", "loss", "grad_norm"),
    some(1, [("nan", "nan", "nan"), ("inf", "inf", "finite"), ("nan gradient", "finite", "nan")]),
)
def test_an_update_with_a_non_finite_loss_or_gradient_is_not_applied_and_its_groups_are_kept(
    run_dir, command, monkeypatch, how, loss, grad_norm
):
    poison(monkeypatch, {5}, how)
    ended = command("train", run_dir, "--checkpoint.every", 1)
    assert ended.status == 0
    dump = run_dir / "nonfinite" / "update-000005.json"
    assert "update 5 had loss " in ended.out and f"its groups are in {dump}" in ended.out
    stored = json.loads(dump.read_text())
    assert stored["update"] == 5
    assert stored["groups"] == groups_of(stage=1, batch=1)
    assert [finite_or(stored[key]) for key in ("loss", "grad_norm")] == [loss, grad_norm]
    lines = {line["update"]: line for line in read_metrics(run_dir) if line["kind"] == "update"}
    assert [lines[update]["skipped"] for update in range(1, 7)] == [0, 0, 0, 0, 1, 0]
    assert final_weights(run_dir, 5) == final_weights(run_dir, 4)
    assert final_weights(run_dir, 6) != final_weights(run_dir, 5)
    assert "skipped     1 updates with a non-finite loss or gradient" in ended.out


@pytest.mark.long
def test_non_finite_updates_in_a_row_stop_the_run_and_reach_no_checkpoint(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    run_dir, config = tmp_path / "run", write_config(tmp_path)
    with monkeypatch.context() as patch:
        poison(patch, {3, 4, 5})
        ended = command("train", config, "--run-dir", run_dir)
    stopped(ended, "3 updates in a row had a non-finite loss or gradient", "nonfinite")
    assert sorted(p.name for p in (run_dir / "nonfinite").iterdir()) == [
        f"update-00000{update}.json" for update in (3, 4, 5)
    ]
    assert checkpoints(run_dir) == [2, 4]
    assert final_weights(run_dir, 2) == final_weights(run_dir, 4)
    assert command(*resume_words(ended)).status == 0
    lines = {line["update"]: line for line in read_metrics(run_dir) if line["kind"] == "update"}
    assert [lines[update]["skipped"] for update in range(1, 7)] == [0, 0, 1, 1, 0, 0]


@pytest.mark.long
def test_nan_weights_are_refused_as_a_checkpoint_and_the_last_good_one_is_named(
    run_dir: Path, command: Command, monkeypatch: pytest.MonkeyPatch, reference: Path
):
    step = torch.optim.AdamW.step

    def spoiled(optimizer: torch.optim.AdamW) -> None:
        step(optimizer)
        with torch.no_grad():
            optimizer.param_groups[0]["params"][3][0, 0] = math.nan

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", spoiled)
        ended = command("train", run_dir, "--checkpoint.every", 1)
    good = run_dir / "checkpoints" / "update-000004"
    text = "the checkpoint of update 5 is not written, because model.layers.0"
    stopped(ended, text, "contains NaN", f"one is {good}")
    assert checkpoints(run_dir) == [1, 2, 3, 4]
    assert not list(run_dir.rglob("*.tmp.*"))
    assert command("train", run_dir, "--checkpoint.every", 2).status == 0
    assert_same(run_dir, reference)
