"""Models, data sets, directories and packages that are not available."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from huggingface_hub import constants

from mugrpo.model import loading, pretrained
from tests.faults.case import Case

pytest_plugins = ["tests.run_fixtures"]


def answered(status: int) -> Any:
    """Return a response of the hub with this status."""
    return mock.Mock(status_code=status, headers={})


def test_a_hub_id_with_an_adapter_is_refused_even_if_there_is_a_model_too(
    case: Case, monkeypatch: pytest.MonkeyPatch, model: Path
):
    """transformers would load the model that the adapter names. The hub's cache has the files."""
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "nobody/another"}')
    repository = case.folder / "models--nobody--nothing"
    shutil.copytree(model, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(case.folder))
    monkeypatch.setattr(loading, "hub_answers", lambda: False)
    case.data()
    parts = ("nobody/nothing holds an adapter", "peft's merge_and_unload")
    case.refused("--model.path", "nobody/nothing", parts=parts)


def test_the_hub_is_not_asked_if_its_machine_does_not_answer(monkeypatch: pytest.MonkeyPatch):
    """A machine that listens answers, another does not, and a proxy may know the way."""
    answers = pretrained.hub_answers.__wrapped__
    monkeypatch.setattr(pretrained, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(pretrained, "ENDPOINT", f"http://127.0.0.1:{port}")
        assert answers()
    assert not answers()
    monkeypatch.setattr(pretrained, "getproxies", lambda: {"no": "localhost"})
    assert not answers()
    monkeypatch.setattr(pretrained, "getproxies", lambda: {"https": "http://127.0.0.1:1"})
    assert answers()
    with monkeypatch.context() as patch:
        patch.setattr(pretrained, "is_offline_mode", lambda: True)
        assert not answers()
    monkeypatch.setattr(loading, "hub_answers", lambda: False)
    assert loading._how("nobody/nothing")["local_files_only"]
    monkeypatch.setattr(loading, "hub_answers", lambda: pytest.fail("asked for a folder"))
    assert not loading._how(Path(__file__).parent)["local_files_only"]


# ---- missing packages ----
