"""Models, data sets, directories and packages that are not available."""

import shutil
from typing import Any
from unittest import mock

from huggingface_hub import constants


def answered(status: int) -> Any:
    """Return a response of the hub with this status."""
    return mock.Mock(status_code=status, headers={})


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
