"""A run without a precision or a date of its own keeps the one that it began with."""

import datetime
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import mugrpo
from mugrpo.model import hardware
from tests.cases import table
from tests.runs import CONFIG, write_config


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


class Clock(datetime.date):
    """A clock that a test sets."""

    now = datetime.date(2026, 3, 1)

    @classmethod
    def today(cls) -> datetime.date:
        return cls.now


def test_a_resumed_run_writes_the_date_on_which_it_began(tmp_path: Path, monkeypatch):
    """Also if the command names the config file again; an option wins over the clock."""
    (tmp_path / "dated.jinja").write_text("{{ strftime_now('%m%d') }}={{ messages[0].content }}")
    config = tmp_path / "tiny.toml"
    prompt = f'[prompt]\nform = "chat"\nchat_template = "{tmp_path}/dated.jinja"\n'
    config.write_text(f"{CONFIG}\n{prompt}")
    monkeypatch.setattr("mugrpo.rollouts.prompts.datetime", SimpleNamespace(date=Clock))

    def begins(target: Path, run_dir: Path, *options: str) -> str:
        named = None if target == run_dir else run_dir
        with mugrpo.open_run(target, run_dir=named, overrides=options, trust=True) as run:
            return run.prompts.text(run.problems[0])[:5]

    first, second = tmp_path / "first", tmp_path / "second"
    assert begins(config, first) == "0301="
    Clock.now = datetime.date(2026, 3, 2)
    assert begins(config, first) == begins(first, first) == "0301="
    assert begins(config, second) == "0302="
    assert begins(config, tmp_path / "third", "--prompt.date", "2025-12-24") == "1224="
