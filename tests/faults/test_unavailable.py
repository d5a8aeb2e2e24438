"""Models, data sets, directories and packages that are not available."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import pytest
import transformers.utils.hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from mugrpo.model import hub, loading
from tests.faults.case import Case
from tests.faults.harm import edited, refused

pytest_plugins = ["tests.run_fixtures"]


def test_a_missing_model_is_refused(case: Case):
    case.data()
    for path in (case.folder / "absent", "./absent", "a/b/c", "absent"):
        case.refused(
            "--model.path", path, parts=(f"there is no model directory {path}", "or a hub id")
        )
    case.starts()


def test_a_model_directory_without_a_config_is_refused(case: Case, model: Path):
    case.data()
    config = (model / "config.json").read_bytes()
    (model / "config.json").unlink()
    case.refused("--model.path", model, parts=(f"the model {model} cannot be loaded (",))
    (model / "config.json").write_bytes(config)
    case.starts("--model.path", model)


def test_a_model_directory_without_weights_is_refused(case: Case, model: Path):
    case.data()
    (model / "model.safetensors").rename(model / "weights")
    refused(case.train("--model.path", model), f"the model {model} cannot be loaded (")
    (model / "weights").rename(model / "model.safetensors")
    assert case.train("--model.path", model).status == 0


def test_a_config_of_an_unknown_model_is_refused(case: Case, model: Path):
    case.data()
    edited(model / "config.json", model_type="nonesuch")
    case.refused("--model.path", model, parts=(f"the model {model} cannot be loaded (",))


def answered(status: int) -> Any:
    """Return a response of the hub with this status."""
    return mock.Mock(status_code=status, headers={})


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (LocalEntryNotFoundError("no network"), ("couldn't connect", "if there is a network")),
        (
            RepositoryNotFoundError("404", response=answered(404)),
            ("is not a local folder and is not a valid model identifier",),
        ),
        (
            GatedRepoError("401", response=answered(401)),
            ("gated repo", "a gated one needs `hf auth login`"),
        ),
    ],
)
def test_a_hub_model_that_cannot_be_downloaded_is_refused(
    case: Case, monkeypatch: pytest.MonkeyPatch, error: Exception, parts: tuple[str, ...]
):
    def download(*_: Any, **__: Any) -> str:
        raise error

    case.data()
    monkeypatch.setattr(transformers.utils.hub, "hf_hub_download", download)
    parts = ("the model nobody/nothing-of-tests cannot be loaded (", *parts)
    case.refused("--model.path", "nobody/nothing-of-tests", parts=parts)
    case.starts()


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
    answers = hub.hub_answers.__wrapped__
    monkeypatch.setattr(hub, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(hub, "ENDPOINT", f"http://127.0.0.1:{port}")
        assert answers()
    assert not answers()
    monkeypatch.setattr(hub, "getproxies", lambda: {"no": "localhost"})
    assert not answers()
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://127.0.0.1:1"})
    assert answers()
    with monkeypatch.context() as patch:
        patch.setattr(hub, "is_offline_mode", lambda: True)
        assert not answers()
    monkeypatch.setattr(loading, "hub_answers", lambda: False)
    assert loading._how("nobody/nothing")["local_files_only"]
    monkeypatch.setattr(loading, "hub_answers", lambda: pytest.fail("asked for a folder"))
    assert not loading._how(Path(__file__).parent)["local_files_only"]


@pytest.mark.parametrize("option", ["--model.path", "--task.data"])
def test_a_hub_id_is_refused_within_five_seconds_if_the_hub_is_silent(
    case: Case, monkeypatch: pytest.MonkeyPatch, option: str
):
    """Nothing listens where the hub should be. Libraries would ask again and again."""
    case.data()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(hub, "ENDPOINT", f"http://127.0.0.1:{port}")
    hub.hub_answers.cache_clear()
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    began = time.monotonic()
    case.refused(option, "nobody/nothing-of-tests", parts=("nobody/nothing-of-tests", "network"))
    assert time.monotonic() - began < 5
    assert before == (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE)
    hub.hub_answers.cache_clear()


@pytest.mark.parametrize("error", [ConnectionError("no network"), PermissionError("gated")])
def test_a_hub_data_set_that_cannot_be_downloaded_is_refused(
    case: Case, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def load_dataset(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    parts = ("nobody/nothing is not a local file", str(error), "--task.data", "hf auth login")
    case.refused("--task.data", "nobody/nothing", parts=parts)


def test_a_run_directory_that_cannot_be_created_is_refused(case: Case):
    case.data()
    (case.folder / "run").write_text("a file")
    for run_dir in (case.folder / "run", case.folder / "run" / "a", Path("/proc/nowhere/run")):
        refused(case.train("--run-dir", run_dir), f"{run_dir} ", "name another --run-dir")
    assert case.loads == []
    assert (case.folder / "run").read_text() == "a file"


# ---- missing packages ----


@pytest.mark.parametrize(
    ("module", "options", "line"),
    [
        ("datasets", ("--task.data", "openai/gsm8k"), "pip install 'mugrpo[hub]'"),
        ("peft", ("--lora.rank", "4"), "pip install 'mugrpo[lora]'"),
        ("math_verify", ("--task.rewards", "math"), "pip install 'mugrpo[math]'"),
    ],
)
def test_a_missing_package_is_refused_with_the_pip_command(
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    options: tuple[str, str],
    line: str,
):
    case.data()
    monkeypatch.setitem(sys.modules, module, None)
    case.refused(*options, parts=(line,))
    case.starts()
