"""Logprobs computed in another process equal those of this one, and so do its errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.errors import Interrupted, RunStopped, UsageError
from mugrpo.model.policy import load_policy
from mugrpo.model.pretrained import model_path
from mugrpo.optimize import logprobs_process
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.optimize.logprobs_process import logprobs_elsewhere
from mugrpo.optimize.trainer import Experience
from tests.builders import tiny_policy
from tests.cases import some, table
from tests.waiting import alive

pytestmark = pytest.mark.long

CHAIN = model_path(ModelOptions())


def config_of(**options: object) -> RunConfig:
    parts = {"optimizer": {"micro_batch_tokens": 128}, "rollouts": {"temperature": 0.7}}
    return RunConfig.model_validate(parts | options)


def elsewhere(path: str, experience: Experience, folder: Path, check=lambda: None) -> None:
    logprobs_elsewhere(config_of(), path, experience.rollouts, folder / "log", check)


@table("form", ["trained", "gpt2"])
def test_logprobs_equal_those_of_this_process_bit_for_bit(
    experience: Experience, tmp_path: Path, form: str
):
    """In several micro-batches at temperature 0.7, with configured weights and with later ones."""
    path = str(tmp_path / "model")
    if form == "trained":
        policy, config = load_policy(ModelOptions()), config_of()
        with torch.no_grad():
            policy.model.model.norm.weight.mul_(0.5)
    else:
        policy, config = tiny_policy(form), config_of(model={"path": path})
    policy.save(Path(path))
    expected = rollout_logprobs(policy, experience.rollouts, config)
    log = tmp_path / "logs" / "log"
    actual = logprobs_elsewhere(config, path, experience.rollouts, log, lambda: None)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours, theirs)
    assert log.read_text() == ""


def test_a_model_that_cannot_be_loaded_is_refused_in_the_same_words(
    experience: Experience, tmp_path: Path
):
    with pytest.raises(UsageError) as here:
        load_policy(ModelOptions()).load_weights(tmp_path, 0)
    with pytest.raises(UsageError) as there:
        elsewhere(str(tmp_path), experience, tmp_path)
    assert str(there.value) == str(here.value)


@pytest.mark.parametrize(
    ("function", "error", "sentence"),
    some(
        1,
        [
            (
                "forward.batch_logprobs",
                "MemoryError()",
                "memory ran out in a micro-batch of a single response",
            ),
            (
                "logprobs_process.load_policy",
                "MemoryError()",
                "memory ran out in the trainer's model; leave more",
            ),
            (
                "logprobs_process.load_policy",
                "ValueError('a mistake')",
                "logprobs ended with status 1; its log is",
            ),
        ],
    ),
)
def test_memory_that_runs_out_and_a_crash_stop_the_run(
    experience: Experience, tmp_path: Path, monkeypatch, function: str, error: str, sentence: str
):
    program = f"""
from mugrpo.optimize import forward, logprobs_process
def fail(*_, **__): raise {error}
assert callable({function})
{function} = fail
logprobs_process.main()
"""
    monkeypatch.setattr(logprobs_process, "_COMMAND", (sys.executable, "-P", "-c", program))
    with pytest.raises(RunStopped, match=sentence):
        elsewhere(CHAIN, experience, tmp_path)
    assert ("a mistake" in (tmp_path / "log").read_text()) == ("mistake" in error)


def test_the_process_ends_if_the_run_is_asked_to_stop(experience: Experience, tmp_path: Path):
    def check() -> None:
        raise Interrupted("asked to stop")

    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before = children()
    with pytest.raises(Interrupted):
        elsewhere(CHAIN, experience, tmp_path, check)
    assert not any(alive(int(pid)) for pid in children() - before)
