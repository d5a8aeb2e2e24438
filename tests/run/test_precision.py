"""A run without a precision of its own keeps the one that it began with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import mugrpo
from mugrpo.model import hardware
from tests.cases import table
from tests.runs import write_config


def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> str:
    """Return the precision of the run in `folder` on a CPU, or on a GPU that computes in bf16."""
    monkeypatch.setattr(hardware, "device", lambda: device)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    with mugrpo.open_run(write_config(folder), run_dir=folder / "run") as run:
        return run.config.model.precision


@table(("first", "kept", "then"), [("cuda", "bf16", "cpu"), ("cpu", "fp32", "cuda")])
def test_on_another_machine_it_stays(tmp_path, monkeypatch, capsys, first, kept, then):
    assert opened(tmp_path, monkeypatch, first) == kept
    assert ("precision: bf16; " in capsys.readouterr().out) == (first == "cuda")
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["config"]["model"]["precision"] == kept
    assert opened(tmp_path, monkeypatch, then) == kept
    assert "precision:" not in capsys.readouterr().out
