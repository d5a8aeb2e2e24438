"""What `mugrpo publish` sends: a stand-in for the Hub keeps the folder that it is given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mugrpo.tools import publish as publishing
from tests.faults.harm import flip_bit, refused, stopped
from tests.runs import Command, finished, read_metrics

pytest_plugins = ["tests.run_fixtures"]

BASE = "alice/base-1b"


class Hub:
    """The stand-in: one repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.private, self.fails = folder, True, False

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> None:
        if self.fails:
            raise publishing._HTTP_ERROR("no route to the hub")
        assert name == "alice/tiny" and private and exist_ok

    def model_info(self, name: str) -> Any:
        return SimpleNamespace(private=self.private)

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> str:
        shutil.copytree(folder_path, self.folder)
        return f"https://hub/{repo_id}/commit/1"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "sent")
    monkeypatch.setattr(publishing, "HfApi", lambda: hub)
    return hub


def test_the_model_of_the_checkpoint_is_sent_and_nothing_else_of_the_run(
    command: Command, reference: Path, hub: Hub
):
    ended = command("publish", reference, "alice/tiny", "--update", 3, "--license", "mit")
    assert ended.status == 0 and "https://hub/alice/tiny/commit/1" in ended.out
    sent = {path.name for path in hub.folder.rglob("*") if path.is_file()}
    model = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
    assert model - {"generation_config.json"} <= sent
    others = sent - model
    assert all(name.startswith(("tokenizer", "special", "chat_template")) for name in others)
    checkpoint = reference / "checkpoints" / "update-000003"
    assert json.loads((hub.folder / "config.json").read_text())["model_type"]
    loaded = AutoModelForCausalLM.from_pretrained(hub.folder).state_dict()
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        assert torch.equal(loaded[name], weight)
    assert AutoTokenizer.from_pretrained(hub.folder)


def test_the_card_has_the_stored_numbers_with_their_intervals(
    command: Command, reference: Path, hub: Hub
):
    assert command("publish", reference, "alice/tiny", "--base-model", BASE).status == 0
    card = ModelCard.load(hub.folder / "README.md")
    assert card.data.to_dict() == {
        "base_model": BASE,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["mugrpo", "reinforcement-learning", "mu-grpo"],
    }
    first, *_, last = [line for line in read_metrics(reference) if line["kind"] == "evaluation"]
    for update, line in ((0, first), (6, last)):
        low, high = line["accuracy_low"], line["accuracy_high"]
        row = f"| {update} | {line['accuracy']:.3f} | {low:.3f} to {high:.3f} | 4 | 1 |"
        assert row in card.text
    assert 'AutoModelForCausalLM.from_pretrained("alice/tiny")' in card.text
    assert "after update 6 of 6" in card.text and "- `chain`" in card.text


def test_an_adapter_names_its_base_on_the_hub_and_no_folder_of_this_machine(
    command: Command, tmp_path: Path, hub: Hub
):
    finished(tmp_path / "run", "--lora.rank", 4, "--evaluation.every", 0)
    assert command("publish", tmp_path / "run", "alice/tiny", "--base-model", BASE).status == 0
    stored = json.loads((hub.folder / "adapter_config.json").read_text())
    assert stored["base_model_name_or_path"] == BASE
    assert not any(b"/" in path.name.encode() for path in hub.folder.iterdir())
    text = (hub.folder / "README.md").read_text()
    assert 'PeftModel.from_pretrained(base, "alice/tiny")' in text and "Not measured." in text
    assert str(tmp_path) not in text


def test_what_cannot_be_published_is_refused(command: Command, run_dir: Path, hub: Hub):
    refused(command("publish", run_dir.parent, "alice/tiny"), "is not a run")
    refused(command("publish", run_dir, "alice/tiny", "--update", 1), "has no checkpoint")
    hub.private = False
    refused(command("publish", run_dir, "alice/tiny"), "alice/tiny is public; add --public")
    hub.fails = True
    refused(command("publish", run_dir, "alice/tiny"), "no route to the hub")
    flip_bit(max(run_dir.glob("checkpoints/update-*")) / "model.safetensors")
    stopped(command("publish", run_dir, "alice/tiny"), "does not match its checksum")
    assert not hub.folder.exists()
