"""Measuring a machine, at sizes that take no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mugrpo.tools.plan import measuring
from mugrpo.tools.plan.machine import load_machine
from tests.builders import tiny_config
from tests.tools.plan.cases import config


def test_overheads_and_share_are_found_again():
    """0.5 s an update, 0.25 s a micro-batch, and twice the counted seconds."""
    rows = np.array([[1.0, 1, 0.1], [1.0, 2, 3.0], [1.0, 8, 3.5]])
    assert measuring._not_negative(rows, rows @ [0.5, 0.25, 2.0]) == pytest.approx([0.5, 0.25, 2.0])


def test_no_overhead_is_negative():
    rows = np.array([[1.0, 1, 1.0], [1.0, 2, 4.0], [1.0, 8, 4.0]])
    found = measuring._not_negative(rows, rows @ [-0.5, 0.25, 2.0])
    assert min(found) == 0.0 and np.allclose(rows @ found, rows @ [-0.5, 0.25, 2.0], rtol=0.6)


def test_a_measured_machine_is_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name, value in (("_LONGEST", 0.0), ("_BLOCK", 1 << 12), ("_SIDE", 16), ("_TOKENS", 3)):
        monkeypatch.setattr(measuring, name, value)
    tiny_config("llama").save_pretrained(tmp_path)
    small = config(engine={"slots": 4}, model={"device": "cpu"}, rollouts={"max_new_tokens": 8})
    measuring.measure(small, tmp_path, tmp_path / "here.toml")
    machine = load_machine(str(tmp_path / "here.toml"))
    assert (machine.name, machine.kind, machine.devices) == ("here", "cpu", 1)
    assert machine.sources["rates.link"].startswith("assumed")
