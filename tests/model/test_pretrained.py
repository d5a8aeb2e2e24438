"""Models by name, and what is said of files that no model has."""

from pathlib import Path

import pytest

from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model.pretrained import cached, model_path
from tests.faults.harm import refused
from tests.runs import Command, write_config


def test_a_model_of_the_cache_is_used_once_it_is_there(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("MUGRPO_CACHE", str(tmp_path))
    options = ModelOptions(path="smollm2")
    with pytest.raises(UsageError, match=r"`make smollm2`.*HuggingFaceTB/SmolLM2-135M-Instruct"):
        model_path(options)
    cached("smollm2").mkdir(parents=True)
    assert model_path(options) == str(tmp_path / "models" / "SmolLM2-135M-Instruct")


def test_train_says_how_to_get_a_model(monkeypatch, tmp_path: Path, command: Command):
    monkeypatch.setenv("MUGRPO_CACHE", str(tmp_path / "cache"))
    words = ["train", write_config(tmp_path), "--run-dir", tmp_path / "run"]
    refused(command(*words, "--model.path", "smollm2"), "`make smollm2`")
    assert not (tmp_path / "run").exists()
