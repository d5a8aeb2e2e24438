"""A run without a precision of its own keeps the one that it began with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mugrpo
from mugrpo.config.load import load_config
from mugrpo.model import hardware
from mugrpo.run.opening import _for_this_machine
from tests.runs import write_config


def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> str:
    """Return the precision of the run in `folder` on a CPU, or on a GPU that computes in bf16."""
    monkeypatch.setattr(hardware, "device_of", lambda _: device)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    with mugrpo.open_run(write_config(folder), run_dir=folder / "run") as run:
        return run.config.model.precision


@pytest.mark.parametrize(
    ("first", "kept", "then"), [("cuda", "bf16", "cpu"), ("cpu", "fp32", "cuda")]
)
def test_on_another_machine_it_stays(tmp_path, monkeypatch, capsys, first, kept, then):
    assert opened(tmp_path, monkeypatch, first) == kept
    assert ("precision: bf16; " in capsys.readouterr().out) == (first == "cuda")
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["config"]["model"]["precision"] == kept
    assert opened(tmp_path, monkeypatch, then) == kept
    assert "precision:" not in capsys.readouterr().out


def test_a_run_that_was_written_with_auto_takes_what_this_machine_takes(monkeypatch):
    """An import writes a run before anything has computed for it."""
    monkeypatch.setattr(hardware, "device_of", lambda _: "cuda")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    config: Any = load_config(None)
    folder: Any = SimpleNamespace(read_config=lambda: {"config": config.revealed()})
    said: list[str] = []
    screen: Any = SimpleNamespace(say=said.append)
    assert _for_this_machine(folder, config, screen).model.precision == "bf16"
    assert said == ["precision: bf16; the GPU computes in it"]
