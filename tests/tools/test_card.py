"""The card of a published model: what is known is there, and nothing that is private."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from mugrpo.config.load import build_config
from mugrpo.config.private import concealed
from mugrpo.disk.run_dir import RunDir
from mugrpo.report.read import RunData, lines_by_kind
from mugrpo.tools.card import Subject, hub_base, learning_curve, model_card
from mugrpo.tools.publish import _without_paths
from tests.runs import read_metrics

pytest_plugins = ["tests.run_fixtures"]


def subject_of(run_dir: Path, **options: Any) -> Subject:
    stored = json.loads((run_dir / "config.json").read_text())
    config = build_config(stored["config"] | options, "a test")
    lines = lines_by_kind(RunDir(run_dir), [])
    provenance = {**stored["provenance"], "git_revision": None}
    data = RunData(
        "", stored["config"], provenance, lines["refresh"], lines["update"], lines["evaluation"]
    )
    return Subject(config, data, 6, "alice/tiny", False, hub_base(config), "mit", curve=b"PNG")


def test_the_card_tells_what_the_run_has_stored(reference: Path):
    subject = subject_of(reference)
    card = ModelCard(model_card(subject))
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "license": "mit",
        "pipeline_tag": "text-generation",
        "tags": ["mugrpo", "reinforcement-learning", "mu-grpo"],
    }
    text = card.text
    first, *_, last = [line for line in read_metrics(reference) if line["kind"] == "evaluation"]
    for words, line in (("before the first update", first), ("after update 6", last)):
        low, high = line["accuracy_low"], line["accuracy_high"]
        row = f"| {words} | {line['accuracy']:.3f} | {low:.3f} to {high:.3f} | 4 x 1 | 1 |"
        assert row in text
    assert "https://arxiv.org/abs/2605.17570" in text and "https://arxiv.org/abs/2402.03300" in text
    assert "loss_t = -min(r_t A, clip(r_t, low, high) A)" in text
    assert "| a batch | 2 problems x 4 responses = 8 rollouts |" in text
    assert "| rollouts generated | 48 |" in text and "| batches of the stages | 3, 3 |" in text
    assert f"| torch | {subject.run.provenance['torch']} |" in text
    assert "](learning_curve.png)" in text
    assert "git revision" not in text and "None" not in text  # what is unknown is left out
    assert 'AutoModelForCausalLM.from_pretrained("alice/tiny")' in text


def test_a_run_on_the_hubs_data_has_an_index_of_results(reference: Path):
    task = {"name": "dataset", "data": "alice/problems", "split": "train", "rewards": "numeric"}
    task |= {"eval_split": "test"}
    task["system_prompt"] = f"The key is sk-{'a' * 24} at https://bob:sesame@example.org."
    subject = subject_of(reference, task=task, model={"path": "alice/base-1b"})
    card = ModelCard(model_card(subject))
    assert (card.data.base_model, card.data.datasets) == ("alice/base-1b", ["alice/problems"])
    [result] = card.data.eval_results
    accuracy = read_metrics(reference)[-1]["accuracy"]
    assert (result.metric_type, result.metric_value) == ("accuracy", round(accuracy, 4))
    assert (result.dataset_type, result.dataset_split) == ("alice/problems", "test")
    assert result.metric_name == "accuracy, on 4 problems, at temperature 1"
    assert "Held out: [alice/problems](" in card.text and ", split `test`; at most" in card.text
    assert "sesame" not in card.text and "sk-aaa" not in card.text
    assert "https://(left out)@example.org" in card.text


def test_a_share_of_the_problems_is_no_split_of_the_hub(reference: Path):
    task = {"name": "dataset", "data": "alice/problems", "rewards": "numeric", "eval_share": 0.25}
    card = ModelCard(model_card(subject_of(reference, task=task)))
    assert card.data.eval_results is None
    assert "Held out: 0.25 of it, by a hash of the prompt; at most 256 problems." in card.text
    none = model_card(subject_of(reference, task=task | {"eval_share": 0}))
    assert "Held out" not in none


def test_the_temperature_is_the_evaluations_own(reference: Path):
    """The config's may have changed since."""
    subject = subject_of(reference, evaluation={"temperature": 0.3})
    text = model_card(subject)
    assert "4 x 1 | 1 |" in text and "0.3 |" not in text
    bare = [{k: v for k, v in e.items() if k != "temperature"} for e in subject.run.evaluations]
    text = model_card(replace(subject, run=replace(subject.run, evaluations=bare)))
    assert "4 x 1 |  |" in text


def test_what_was_measured_in_4_bits_is_not_said_of_merged_weights(reference: Path):
    task = {"name": "dataset", "data": "alice/problems", "rewards": "numeric", "eval_split": "test"}
    lora = {"rank": 4, "quantization": "nf4"}
    merged = subject_of(reference, task=task, lora=lora, engine={"name": "hf"})
    card = ModelCard(model_card(merged))
    assert card.data.eval_results is None and "whose accuracy was not measured" in card.text
    card = ModelCard(model_card(replace(merged, adapter=True)))
    assert len(card.data.eval_results) == 1
    assert "The base model was in 4 bits when these were measured." in card.text
    assert "A LoRA adapter trained for" in card.text


@pytest.mark.parametrize(
    "secret",
    [
        *(f"{kind}_{'a1' * 12}" for kind in ("hf", "api", "api_org", "ghr", "ghp", "sk_live")),
        *(f"{kind}{'A1' * 8}" for kind in ("AKIA", "ASIA")),
        f"AIza{'a-b_c' * 7}",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    ],
)
def test_what_looks_like_a_token_is_left_out(secret: str):
    assert concealed(f"key={secret}, more") == "key=(left out), more"


def test_a_password_with_a_slash_is_left_out():
    assert concealed("https://bob:se/sa@me@example.org/a") == "https://(left out)@example.org/a"
    assert concealed("https://example.org/@bob") == "https://example.org/@bob"


def test_what_was_not_measured_is_left_out(reference: Path):
    subject = subject_of(reference)
    run = replace(subject.run, evaluations=[], refreshes=[], provenance={})
    text = model_card(replace(subject, run=run, update=3, curve=learning_curve(run)))
    for word in ("Accuracy", "95 %", "png", "rollouts generated", "| torch"):
        assert word not in text


def test_the_learning_curve_is_a_picture_with_or_without_evaluations(reference: Path):
    run = subject_of(reference).run
    pictures = {learning_curve(run), learning_curve(replace(run, evaluations=[]))}
    assert len(pictures) == 2
    for picture in pictures:
        assert picture is not None and picture.startswith(b"\x89PNG\r\n")
        width, height = struct.unpack(">II", picture[16:24])
        assert width > 800 and height > 400


def test_no_path_of_this_machine_is_in_a_config_that_a_library_wrote(tmp_path: Path):
    places = {
        "_name_or_path": "/home/alice/base",
        "special_tokens_map_file": "/home/alice/map.json",
        "cache": "~/models",
        "elsewhere": "C:\\Users\\alice",
    }
    tokens = {"unk_token": "/", "extra": ["/think", "</think>"]}
    config = {"model_type": "llama", "name_or_path": "alice/base", **tokens}
    kept = {**config, "inner": {"list": [{"dtype": "bf16"}, "kept"]}}
    inner = {"list": [{"dtype": "bf16", **places}, "/home/alice/base", "kept"], **places}
    config |= {"inner": inner, **places}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert json.loads(_without_paths(file, None)) == kept
    file.write_text(json.dumps({"base_model_name_or_path": "/home/alice/base", "r": 4}))
    expected = {"base_model_name_or_path": "alice/base", "r": 4}
    assert json.loads(_without_paths(file, "alice/base")) == expected


def test_no_folder_of_this_machine_is_in_the_card(reference: Path):
    """The run's template lies in one."""
    assert str(reference.parent) in (reference / "config.json").read_text()
    assert str(reference.parent) not in model_card(subject_of(reference))
