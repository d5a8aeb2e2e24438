"""Models by name, and what is said of files that no model has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mugrpo.config.run import NAMED_MODELS, ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model.loading import load_model, load_tokenizer, load_vocabulary
from mugrpo.model.pretrained import CACHED, EMBEDDED, cached, model_fingerprint, model_path
from tests.cases import table
from tests.faults.harm import refused
from tests.runs import Command, write_config

pytest_plugins = ["tests.run_fixtures"]


def test_a_model_of_the_cache_is_used_once_it_is_there(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("MUGRPO_CACHE", str(tmp_path))
    options = ModelOptions(path="smollm2")
    with pytest.raises(UsageError, match=r"`make smollm2`.*HuggingFaceTB/SmolLM2-135M-Instruct"):
        model_path(options)
    cached("smollm2").mkdir(parents=True)
    assert model_path(options) == str(tmp_path / "models" / "SmolLM2-135M-Instruct")


def test_a_name_means_the_model_whatever_the_working_directory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Names are listed in config, too, because reading one must not import torch."""
    assert sorted(NAMED_MODELS) == sorted([*EMBEDDED, *CACHED])
    monkeypatch.chdir(tmp_path)
    embedded = model_fingerprint(ModelOptions())
    (tmp_path / "chain").mkdir()
    assert model_path(ModelOptions(path="chain")) == str(EMBEDDED["chain"])
    assert model_fingerprint(ModelOptions(path="chain")) == embedded


def test_train_says_how_to_get_a_model(monkeypatch, tmp_path: Path, command: Command):
    monkeypatch.setenv("MUGRPO_CACHE", str(tmp_path / "cache"))
    words = ["train", write_config(tmp_path), "--run-dir", tmp_path / "run"]
    refused(command(*words, "--model.path", "smollm2"), "`make smollm2`")
    assert not (tmp_path / "run").exists()


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
