"""A run with precision "auto" keeps the one that it began with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mugrpo
from mugrpo.model import hardware
from tests.runs import write_config


def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, units: str) -> str:
    """Return the precision of the run in `folder` on a CPU with `units`."""
    monkeypatch.setattr(hardware, "bf16_units", lambda: units)
    words = ["--model.precision", "auto"]
    with mugrpo.open_run(write_config(folder), run_dir=folder / "run", overrides=words) as run:
        return run.config.model.precision


@pytest.mark.parametrize(("first", "kept"), [("AVX512", "bf16"), ("", "fp32")])
def test_on_another_machine_it_stays(tmp_path, monkeypatch, capsys, first, kept):
    assert opened(tmp_path, monkeypatch, first) == kept
    assert f"precision: {kept}; " in capsys.readouterr().out
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["config"]["model"]["precision"] == kept
    assert opened(tmp_path, monkeypatch, "AVX512" if kept == "fp32" else "") == kept
    assert "precision:" not in capsys.readouterr().out
