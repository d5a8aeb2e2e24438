"""Runs that train an adapter: killed and resumed, with other engines, with ranks, and merged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.builders import saved_weights
from tests.runs import (
    Command,
    assert_same,
    final_weights,
    finished,
    killed,
    read_metrics,
)

pytest_plugins = ["tests.run_fixtures"]

LORA = ("--lora.rank", "4", "--optimizer.lr", "3e-3")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run. Tests only read it."""
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    finished(run_dir, *LORA)
    return run_dir


def test_every_update_moves_the_policy_and_the_canary_sees_no_gap_but_rounding(reference: Path):
    lines = read_metrics(reference)
    updates = [line for line in lines if line["kind"] == "update"]
    assert all(line["grad_norm"] > 0.1 and line["skipped"] == 0 for line in updates)
    assert all(line["kl_behavior"] > 1e-5 for line in updates if line["staleness"])
    gaps = [line["canary_gap"] for line in lines if line["kind"] == "refresh"]
    assert len(gaps) == 2 and max(gaps) < 1e-5
    assert final_weights(reference).keys() == {"adapter_model", "optimizer"}


@pytest.mark.promise("killed")
@pytest.mark.parametrize(
    ("place", "nth"),
    [
        ("half an evaluation", 1),
        pytest.param("gradient", 1, marks=pytest.mark.long),
        pytest.param("optimizer step", 3, marks=pytest.mark.long),
        ("half a checkpoint", 2),
        ("engine batch", 9),
        pytest.param("checkpoint", 3, marks=pytest.mark.long),
        ("gradient", 6),
    ],
)
def test_a_killed_run_of_an_adapter_ends_in_the_same_bits(
    reference: Path, tmp_path: Path, place: str, nth: int
):
    killed(tmp_path / "run", place, nth, *LORA)
    finished(tmp_path / "run", *LORA)
    assert_same(tmp_path / "run", reference)


def test_an_engine_in_a_process_of_its_own_gives_the_same_bits(reference: Path, tmp_path: Path):
    finished(tmp_path / "run", *LORA, "--engine.processes", "1", "--engine.threads", "1")
    assert_same(tmp_path / "run", reference)


def test_the_reference_policy_is_the_model_without_the_adapter(reference: Path, tmp_path: Path):
    """Before the first update the policy is the model too, so the penalty's gradient is 0 there.

    After it, the penalty counts: the weights differ from those of the run without it.
    """
    kl = ("--reference.name", "kl", "--reference.coefficient", "1")
    finished(tmp_path / "run", *LORA, *kl, "--reference.corrected", "false")
    ours, theirs = (
        [line for line in read_metrics(run) if line["kind"] == "update"]
        for run in (tmp_path / "run", reference)
    )
    assert ours[0]["kl_reference"] < 1e-9
    assert ours[0]["grad_norm"] == pytest.approx(theirs[0]["grad_norm"], rel=1e-4)
    assert all(line["kl_reference"] > 1e-6 for line in ours[1:])
    assert final_weights(tmp_path / "run") != final_weights(reference)
    killed(tmp_path / "other", "gradient", 5, *LORA, *kl, "--reference.corrected", "false")
    finished(tmp_path / "other", *LORA, *kl, "--reference.corrected", "false")
    assert_same(tmp_path / "other", tmp_path / "run")


@pytest.mark.long
def test_two_ranks_train_an_adapter_and_one_process_goes_on(reference: Path, tmp_path: Path):
    run_dir, two = tmp_path / "run", ("--distributed.processes", "2")
    finished(run_dir, *LORA, *two, "--schedule.stages", "1")
    names = {f.name for f in (run_dir / "checkpoints/update-000003").glob("*.safetensors")}
    assert names == {
        "adapter_model.safetensors",
        "optimizer-00001-of-00002.safetensors",
        "optimizer-00002-of-00002.safetensors",
    }
    ours, theirs = (
        [line for line in read_metrics(run) if line["kind"] == "update"][:3]
        for run in (run_dir, reference)
    )
    for line, expected in zip(ours, theirs, strict=True):
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
    finished(run_dir, *LORA, "--schedule.stages", "2", "--force")
    assert final_weights(run_dir).keys() == {"adapter_model", "optimizer"}


def test_another_rank_is_refused_and_a_run_of_before_lora_resumes_unasked(
    reference: Path, tmp_path: Path, command: Command, run_dir: Path
):
    ended = command("train", reference, "--lora.rank", "8")
    assert ended.status == 2 and "lora.rank: 4 -> 8" in ended.err
    path = run_dir / "config.json"
    stored = json.loads(path.read_text())
    del stored["config"]["lora"]
    path.write_text(json.dumps(stored))
    (run_dir / "journal.jsonl").unlink()
    stored["format"] = 1  # as runs without a journal have it
    path.write_text(json.dumps(stored))
    ended = command("train", run_dir)
    assert (ended.status, ended.err) == (0, "")
    assert "changed since" not in ended.out


def test_merge_writes_a_plain_model_of_a_run_or_a_checkpoint(
    reference: Path, tmp_path: Path, command: Command
):
    checkpoint = reference / "checkpoints" / "update-000006"
    for source, out in ((reference, "one"), (checkpoint, "two")):
        ended = command("merge", source, tmp_path / out)
        assert (ended.status, ended.err) == (0, "")
    one, two = (saved_weights(tmp_path / out) for out in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert sum(p.numel() for p in model.parameters()) == sum(t.numel() for t in one.values())
    ended = command("merge", reference, tmp_path / "one")
    assert ended.status == 2 and "exists already" in ended.err
