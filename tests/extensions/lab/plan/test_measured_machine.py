"""Measuring a machine, at sizes that take no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mugrpo.extensions.lab.plan import measuring, rates
from mugrpo.extensions.lab.plan.generation import EnginePrices
from mugrpo.extensions.lab.plan.lengths import Lengths, Seen
from mugrpo.extensions.lab.plan.machine import load_machine
from mugrpo.extensions.lab.plan.schedules import Planner
from mugrpo.extensions.lab.plan.setting import Setting, shape_of
from mugrpo.model.hardware import precision_of
from tests.builders import tiny_config
from tests.extensions.lab.plan.cases import config, machine


def test_overheads_and_share_are_found_again():
    """0.5 s an update, 0.25 s a micro-batch, and twice the counted seconds."""
    rows = np.array([[1.0, 1, 0.1], [1.0, 2, 3.0], [1.0, 8, 3.5]])
    values = rows @ [0.5, 0.25, 2.0]
    for measured in (values, values + 3):
        found = measuring._not_negative(rows, values, measured)
        assert found == pytest.approx([0.5, 0.25, 2.0])


def test_no_overhead_is_negative():
    rows = np.array([[1.0, 1, 1.0], [1.0, 2, 4.0], [1.0, 8, 4.0]])
    values = rows @ [-0.5, 0.25, 2.0]
    found = measuring._not_negative(rows, values, values)
    assert min(found) == 0.0 and np.allclose(rows @ found, rows @ [-0.5, 0.25, 2.0], rtol=0.6)


def test_a_measured_machine_is_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measuring, "_TOKENS", 3)
    for name, value in (("LONGEST", 0.0), ("_BLOCK", 1 << 12), ("_SIDE", 16)):
        monkeypatch.setattr(rates, name, value)
    tiny_config("llama").save_pretrained(tmp_path)
    model = {"device": "cpu", "precision": "auto"}
    small = config(engine={"slots": 4}, model=model, rollouts={"max_new_tokens": 8})
    precisions = []
    counted = EnginePrices.seconds
    monkeypatch.setattr(
        EnginePrices,
        "seconds",
        lambda self, occupied: precisions.append(self.precision) or counted(self, occupied),
    )
    measuring.measure(small, tmp_path, tmp_path / "here.toml")
    assert set(precisions) == {precision_of(small.model)[0]}  # what a run would take
    machine = load_machine(str(tmp_path / "here.toml"))
    assert (machine.name, machine.kind, machine.devices) == ("here", "cpu", 1)
    assert machine.sources["rates.link"].startswith("assumed")


def test_a_rate_is_the_best_of_calls_and_a_time_their_median(monkeypatch: pytest.MonkeyPatch):
    taken, before = iter([3.0, 1.0, 2.0, 2.0, 1.5, 9.0]), []
    monkeypatch.setattr(rates, "LONGEST", 5.5)
    monkeypatch.setattr(rates, "_seconds", lambda *_: next(taken))
    cpu = torch.device("cpu")
    assert rates.best(lambda: None, cpu) == 1.0  # 3 + 1 + 2 are the first to reach 5.5
    assert rates.typical(lambda: None, cpu, lambda: before.append(1)) == 2.0  # of 2, 1.5 and 9
    assert before == [1, 1, 1]


def test_a_plan_has_the_seconds_of_the_measured_canary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What is counted for responses of its lengths, and the overhead, are what it took."""
    monkeypatch.setattr(measuring, "typical", lambda *_, **__: 500.0)
    tiny_config("llama").save_pretrained(tmp_path)
    small = config(engine={"slots": 4, "canary_responses": 4}, model={"device": "cpu"})
    shape, known = shape_of(small, tmp_path), machine(fp32=1e6)
    policy = measuring._policy(small, tmp_path)
    known = machine(fp32=1e6, refresh=measuring._refresh(policy, small, shape, known))
    lengths = Lengths((Seen(0, np.array([32]), np.array([[16]])),), "the canary's")
    planner = Planner(Setting(small, shape, known, lengths))
    assert planner.refresh(1) == pytest.approx(500.0)
    assert known.overheads.refresh < 500
