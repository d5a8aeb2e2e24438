"""examples/one_stage.py fits on a page and has the pipeline's weights and numbers to the bit."""

import ast
import runpy
import sys
from typing import Any

import pytest
import torch

import mugrpo
from tests.cases import some
from tests.runs import ROOT, read_metrics

EXAMPLE = ROOT / "examples" / "one_stage.py"
SOURCE = EXAMPLE.read_text()

# Two updates on each of two batches, several micro-batches, and every option that decides a step.
TAPERED_GRPO = """
    --seed 10 --task.train_problems 24 --task.eval_problems 16
    --schedule.batches_per_stage 2 --schedule.passes_per_batch 2 --schedule.problems_per_update 4
    --schedule.group_size 4 --engine.slots 8 --rollouts.temperature 1.1
    --rollouts.max_new_tokens 42 --optimizer.lr 1e-3 --optimizer.lr_schedule linear
    --optimizer.warmup_updates 1 --optimizer.weight_decay 0.1
    --optimizer.max_grad_norm 0.2 --optimizer.micro_batch_tokens 400
"""
# Other options of the objective, another reduction, a constant rate, and a first update without a
# gradient.
OTHER_OPTIONS = """
    --objective.taper smallest --objective.negative_weight 0.5
    --reduction sequence_mean --seed 9 --task.train_problems 24 --task.eval_problems 4
    --schedule.batches_per_stage 6 --schedule.problems_per_update 1 --schedule.group_size 4
    --engine.slots 8 --optimizer.lr 1e-3 --optimizer.lr_schedule constant
"""


Lines = list[dict[str, Any]]


def tapers(updates: Lines) -> None:
    for key in ("tapered_fraction", "zero_variance_share", "truncated_share"):
        assert max(line[key] for line in updates) > 0, key
    assert max(line["grad_norm"] for line in updates) > 0.2  # max_grad_norm


def begins_without_a_gradient(updates: Lines) -> None:
    norms = [line["grad_norm"] for line in updates]
    assert norms[0] == 0 < min(norms[1:])


@pytest.mark.parametrize(
    ("words", "enough_happens"),
    some(1, [(TAPERED_GRPO, tapers), (OTHER_OPTIONS, begins_without_a_gradient)]),
    ids=["tapered-grpo", "other options"],
)
def test_its_weights_and_numbers_are_the_pipelines_in_every_bit(
    words, enough_happens, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *words.split()])
    example = runpy.run_path(str(EXAMPLE))
    printed = capsys.readouterr().out.splitlines()

    overrides = [*example["OPTIONS"].split(), *words.split()]
    (tmp_path / "empty.toml").touch()
    with mugrpo.open_run(
        tmp_path / "empty.toml", overrides=overrides, run_dir=tmp_path / "run"
    ) as run:
        mugrpo.train(run)
    lines = read_metrics(tmp_path / "run")
    updates = [line for line in lines if line["kind"] == "update"]
    enough_happens(updates)

    checkpoint = str(run.folder.checkpoint(len(updates)))
    options = mugrpo.load_config(overrides=["--model.path", checkpoint]).model
    theirs = dict(mugrpo.load_policy(options).model.named_parameters())
    ours = dict(example["policy"].model.named_parameters())
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []

    before, after = (line["reward"] for line in lines if line["kind"] == "evaluation")
    assert printed == [
        *(
            f"update {number:3}  reward {line['batch_reward']:.3f}  loss {line['loss']:+.4f}  "
            f"norm {line['grad_norm']:.3f}"
            for number, line in enumerate(updates)
        ),
        f"{len(example['held_out'])} held-out problems: {before:.3f} before, {after:.3f} after",
    ]


def test_it_is_one_page_without_a_class():
    assert len(SOURCE.splitlines()) <= 150
    assert not any(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(SOURCE)))
