"""Models and tokenizers that do not fit, and engines whose logprobs are off."""

import dataclasses
import io
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from mugrpo.engines.base import Completion
from mugrpo.engines.hf import HFEngine
from tests.cases import some
from tests.faults.harm import edited, refused, stopped
from tests.runs import Command, State, final_weights, state, write_config


@pytest.fixture
def engine_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that reached the engine."""
    batches: list[int] = []
    batch = HFEngine._batch

    def noted(engine: HFEngine, requests: Any, *rest: Any) -> list[Completion]:
        batches.append(len(requests))
        return batch(engine, requests, *rest)

    monkeypatch.setattr(HFEngine, "_batch", noted)
    return batches


@pytest.fixture
def words(model: Path, tmp_path: Path) -> list[object]:
    """The command that trains the tiny run with `model`."""
    config, run_dir = write_config(tmp_path), tmp_path / "run"
    return ["train", config, "--run-dir", run_dir, "--model.path", model]


@pytest.mark.parametrize("part", some(1, ["AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"]))
def test_a_models_own_code_is_neither_run_nor_asked_about(
    model, words, tmp_path, command, monkeypatch, part
):
    """Its type is one that transformers does not have. The terminal would answer yes."""
    ran, file = tmp_path / "ran", "config.json"
    if part == "AutoTokenizer":
        file = "tokenizer_config.json"
    (model / "own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Own: ...\n")
    named = "own.Own" if file == "config.json" else ["own.Own", None]
    edited(model / file, auto_map={part: named}, tokenizer_class="Own")
    if file == "config.json":
        edited(model / file, model_type="own")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    ended = command(*words)
    assert not ran.exists()
    refused(ended, str(model))
    assert sys.stdin.read() == "y\n" * 9
    if part != "AutoModelForCausalLM":
        assert "code of its own" in ended.err


@pytest.mark.parametrize("value", some(1, [float("nan"), float("inf"), float("-inf")]))
def test_a_model_with_a_weight_that_is_not_finite_is_refused_by_the_weights_name(
    model, words, tmp_path: Path, command: Command, engine_batches: list[int], value: float
):
    file, name = model / "model.safetensors", "model.layers.1.mlp.down_proj.weight"
    tensors = load_file(file)
    tensors[name][3, 4] = value
    save_file(tensors, file, {"format": "pt"})
    refused(command(*words), f"{name} of the model {model} contains NaN or inf")
    assert engine_batches == []


@pytest.mark.long
def test_after_an_engine_with_wrong_logprobs_is_fixed_the_run_ends_in_the_same_bits(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, reference: Path
):
    run_dir, completions = tmp_path / "run", HFEngine._completions

    def shifted(engine: HFEngine, *tensors: torch.Tensor) -> list[Completion]:
        correct = completions(engine, *tensors)
        return [dataclasses.replace(c, logprobs=c.logprobs + np.float32(0.25)) for c in correct]

    with monkeypatch.context() as patch:
        patch.setattr(HFEngine, "_completions", shifted)
        ended = command("train", write_config(tmp_path), "--run-dir", run_dir)
    stopped(ended, "canary: engine and trainer differ by 0.25", "tolerance 0.001")
    assert state(run_dir).rollouts == (0, 0)
    assert not (run_dir / "evaluations").exists()  # nothing was measured with it
    assert command("train", run_dir).status == 0
    assert final_weights(run_dir) == final_weights(reference)


def test_an_engine_that_goes_wrong_once_the_model_has_changed_makes_no_update(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, reference: Path
):
    """It samples from the model that trains, so no canary is asked: the first update compares."""
    run_dir, completions = tmp_path / "run", HFEngine._completions
    words = ("train", write_config(tmp_path), "--run-dir", run_dir, "--evaluation.every", 0)

    def shifted(engine: HFEngine, *tensors: torch.Tensor) -> list[Completion]:
        correct = completions(engine, *tensors)
        by = np.float32(0.25 if engine.policy.update else 0)
        return [dataclasses.replace(c, logprobs=c.logprobs + by) for c in correct]

    with monkeypatch.context() as patch:
        patch.setattr(HFEngine, "_completions", shifted)
        ended = command(*words)
    stage = run_dir / "stages" / "001" / "rollouts"
    stopped(ended, "canary: engine and trainer differ by 0.25", f"move {stage} away")
    left = State((3, 3), (3, 3), (2,), "refresh 3")
    assert state(run_dir) == left
    stopped(command("train", run_dir), f"move {stage} away")  # and a fixed engine is not enough
    assert state(run_dir) == left
    stage.rename(tmp_path / "away")
    assert command("train", run_dir).status == 0
    assert final_weights(run_dir) == final_weights(reference)


def test_the_canary_finds_an_engine_that_is_wrong_in_long_rows_alone(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """Responses of the stage would be as long in the end, but those of the canary are not."""
    batch, wrong_from = HFEngine._batch, 100

    def shifted(engine: HFEngine, requests: Any, *rest: Any) -> list[Completion]:
        return [
            dataclasses.replace(c, logprobs=c.logprobs + np.float32(0.25))
            if len(request.prompt_ids) + len(c.ids) > wrong_from
            else c
            for request, c in zip(requests, batch(engine, requests, *rest), strict=True)
        ]

    monkeypatch.setattr(HFEngine, "_batch", shifted)
    words = ["generate", write_config(tmp_path), "--stage", 0, "--run-dir"]
    short = command(*words, tmp_path / "short")
    assert short.status == 0, short
    assert state(tmp_path / "short").rollouts == (3, 0)
    long = command(*words, tmp_path / "long", "--rollouts.max_new_tokens", wrong_from)
    stopped(long, "canary: engine and trainer differ by 0.25")
    assert state(tmp_path / "long").rollouts == (0, 0)


def test_a_chat_template_that_fails_is_refused(model, words, tmp_path, command):
    (model / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    ended = command(*words, "--prompt.chat_template", "none")
    refused(ended, "the chat template fails on problem", "name another with --prompt.chat_template")
    assert not (tmp_path / "run").exists()


def test_a_hub_id_with_an_adapter_is_refused_even_if_there_is_a_model_too(case, monkeypatch, model):
    """transformers would load the model that the adapter names. The hub's cache has the files."""
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "nobody/another"}')
    repository = case.folder / "models--nobody--nothing"
    shutil.copytree(model, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(case.folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    case.data()
    parts = ("nobody/nothing holds an adapter", "peft's merge_and_unload")
    case.refused("--model.path", "nobody/nothing", parts=parts)
