"""Runs with engines in processes of their own give the same bits as with one in process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mugrpo.config.run import ModelOptions
from mugrpo.disk.run_dir import RunDir
from mugrpo.model import policy as policies
from mugrpo.model.policy import load_policy
from mugrpo.optimize.trainer import Trainer
from mugrpo.run.weights import hand_over
from tests.runs import Command, assert_same, finished, start_train, state, write_config
from tests.waiting import engines_of, until

pytest_plugins = ["tests.run_fixtures"]

TWO = ("--engine.processes", "2", "--engine.threads", "1")


def test_two_engines_give_the_same_bits(tmp_path: Path, reference: Path):
    run_dir = tmp_path / "run"
    finished(run_dir, *TWO)
    assert_same(run_dir, reference)
    assert sorted(log.name for log in (run_dir / "logs").iterdir()) == [
        "engine-0.log",
        "engine-1.log",
    ]


@pytest.mark.long
def test_a_run_whose_engine_is_killed_ends_in_the_same_bits(tmp_path: Path, reference: Path):
    """The engine is killed as soon as it is seen, while it starts or works."""
    run_dir = tmp_path / "run"
    started = start_train(run_dir, *TWO)
    os.kill(until(lambda: engines_of(started.pid))[0], signal.SIGKILL)
    ended = started.end()
    assert ended.status == 0 and ended.err == "", ended
    assert "ended with SIGKILL" in ended.out and "Restarting it (1/2)" in ended.out
    assert_same(run_dir, reference)


def test_generation_in_separate_engines_makes_no_trainer_and_reads_no_weights(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    loads, trainers = list[Any](), list[Any]()
    monkeypatch.setattr(policies, "_load_model", lambda path: loads.append(path))
    monkeypatch.setattr(Trainer, "__init__", lambda *_, **__: trainers.append(1))
    config = write_config(tmp_path)
    ended = command("generate", config, "--run-dir", tmp_path / "run", "--engine.processes", 1)
    assert ended.status == 0, ended
    assert state(tmp_path / "run").rollouts == (3, 0)
    assert (loads, trainers) == ([], [])


def test_only_the_model_is_handed_over(tmp_path: Path, reference: Path):
    """An engine may load every .safetensors file it sees, so it must not see the optimizer's.

    The model is a link to the checkpoint's, or is written if there is no checkpoint.
    """
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "checkpoints").symlink_to(reference / "checkpoints")
    policy = load_policy(ModelOptions())
    policy.load_weights(reference / "checkpoints" / "update-000004", 4)
    folder = Path(hand_over(RunDir(copy), ModelOptions(), policy, policy.update))
    names = sorted(path.name for path in folder.iterdir())
    assert "model.safetensors" in names and "tokenizer.json" in names
    assert not any(name.startswith(("optimizer", "trainer", "stages", "sha256")) for name in names)
    kept = reference / "checkpoints" / "update-000004" / "model.safetensors"
    assert (folder / "model.safetensors").resolve() == kept.resolve()
    policy.update = 5
    written = Path(hand_over(RunDir(copy), ModelOptions(), policy, policy.update))
    assert not folder.exists() and not (written / "model.safetensors").is_symlink()
    assert (written / "model.safetensors").read_bytes() == kept.read_bytes()
    assert json.loads((written / "config.json").read_text())["model_type"] == "llama"
    policy.update = 0
    assert hand_over(RunDir(copy), ModelOptions(), policy, policy.update).endswith("chain_model")
