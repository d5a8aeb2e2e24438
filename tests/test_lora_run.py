"""Runs that train an adapter: killed and resumed, with other engines, with ranks, and merged."""

import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from mugrpo.disk.publishing import seal_folder
from tests.builders import saved_weights
from tests.faults.harm import edited, refused
from tests.runs import MODEL, Command, final_weights, finished, read_metrics

LORA = ("--lora.rank", "4", "--lora.alpha", "24", "--optimizer.lr", "3e-3")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run. Tests only read it."""
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    finished(run_dir, *LORA)
    return run_dir


def test_every_update_moves_the_policy_and_the_first_of_a_stage_sees_no_gap_but_rounding(
    reference: Path,
):
    lines = read_metrics(reference)
    updates = [line for line in lines if line["kind"] == "update"]
    assert all(line["grad_norm"] > 0.1 and line["skipped"] == 0 for line in updates)
    assert all(line["kl_behavior"] > 1e-5 for line in updates if line["staleness"])
    gaps = [line["logprob_gap/max"] for line in updates if not line["staleness"]]
    assert len(gaps) == 2 and max(gaps) < 1e-5
    assert final_weights(reference).keys() == {"adapter_model", "optimizer"}


@pytest.mark.long
def test_the_reference_policy_is_the_model_without_the_adapter(reference: Path, tmp_path: Path):
    """Before the first update the policy is the model too, so the penalty's gradient is 0 there.
    After it, the penalty counts: the weights differ from those of the run without it."""
    kl = ("--reference.name", "kl", "--reference.coefficient", "1")
    finished(tmp_path / "run", *LORA, *kl)
    ours, theirs = (
        [line for line in read_metrics(run) if line["kind"] == "update"]
        for run in (tmp_path / "run", reference)
    )
    assert ours[0]["kl_reference"] < 1e-9
    assert ours[0]["grad_norm"] == pytest.approx(theirs[0]["grad_norm"], rel=1e-4)
    assert all(line["kl_reference"] > 1e-6 for line in ours[1:])
    assert final_weights(tmp_path / "run") != final_weights(reference)


def test_merge_writes_a_plain_model_of_a_run_or_a_checkpoint(reference, tmp_path, command):
    checkpoint = reference / "checkpoints" / "update-000006"
    for source, out in ((reference, "one"), (checkpoint, "two")):
        ended = command("merge", source, tmp_path / out)
        assert (ended.status, ended.err) == (0, "")
    one, two = (saved_weights(tmp_path / out) for out in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    ids_1L = torch.arange(2, 14)[None]
    base, merged = (AutoModelForCausalLM.from_pretrained(at) for at in (MODEL, tmp_path / "one"))
    before, ours = (model(ids_1L).logits for model in (base, merged))
    theirs = PeftModel.from_pretrained(base, checkpoint)(ids_1L).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert (ours - before).abs().max() > 0.1
    ended = command("merge", reference, tmp_path / "one")
    assert ended.status == 2 and "exists already" in ended.err


def test_merge_refuses_a_model_that_was_not_trained_on(reference, tmp_path, model, command):
    words = ["merge", reference, tmp_path / "out", "--base", model]
    assert command(*words).status == 0  # a copy
    edited(model / "generation_config.json", eos_token_id=0)
    words[2] = tmp_path / "other"
    refused(command(*words), f"{model} is not the model", "with --base", "with --force")
    assert command(*words, "--force").status == 0
    ours, theirs = (saved_weights(tmp_path / out) for out in ("out", "other"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"r": 3}, "peft cannot load the adapter"),
        ({"peft_type": "none"}, "peft cannot load the adapter"),
        ({"base_model_name_or_path": None}, "model.path = None"),
    ],
)
def test_merge_refuses_an_adapter_that_peft_cannot_load(
    reference: Path, tmp_path: Path, command: Command, values: dict, sentence: str
):
    folder = Path(shutil.copytree(reference / "checkpoints/update-000006", tmp_path / "theirs"))
    edited(folder / "adapter_config.json", **values)
    (folder / "sha256.json").unlink()
    seal_folder(folder)
    refused(command("merge", folder, tmp_path / "out"), sentence)
