"""The canary compares logprobs of engine and trainer, here on values."""

import math
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.records import FinishReason, Rollout
from mugrpo.hosts import canary
from mugrpo.hosts.canary import CANARY_TOLERANCE, check_first_update, check_gap, logprob_gap
from mugrpo.hosts.engines import Engines
from mugrpo.model.policy import load_policy
from mugrpo.optimize.forward import rollout_logprobs
from tests.cases import table
from tests.runs import Command, write_config
from tests.updates import config_of


def rollout(*logprobs: float) -> Rollout:
    """Return a rollout with these behavior logprobs."""
    ids = np.arange(len(logprobs), dtype=np.int32)
    behavior = np.array(logprobs, np.float32)
    return Rollout("1", 0, 0, 0, ids, ids, behavior, FinishReason.LENGTH, 1.0, 0)


ENGINE = [rollout(-1.0, -2.0), rollout(-0.5)]
TRAINER = [np.array([-1.0, -2.25], np.float32), np.array([-0.625], np.float32)]


def test_the_gap_in_fp32_is_the_largest_and_in_bf16_the_mean():
    assert logprob_gap(TRAINER, ENGINE, "fp32") == 0.25
    assert logprob_gap(TRAINER, ENGINE, "bf16") == pytest.approx((0 + 0.25 + 0.125) / 3)


def test_a_gap_within_half_of_the_tolerance_passes_and_above_that_it_is_reported():
    said: list[str] = []
    check_gap(5e-4, "fp32", said.append)
    assert said == []
    check_gap(6e-4, "fp32", said.append)
    assert "by 0.0006 in logprob" in said[0] and "above 0.001 the run stops" in said[0]


@table("gap", [0.25, math.nan])
def test_a_gap_above_the_tolerance_stops_the_run(gap):
    words = rf"differ by {gap} in logprob on average \(tolerance 0.1\)"
    with pytest.raises(RunStopped, match=words):
        check_gap(gap, "bf16", print)


@table(
    ("shared", "entry", "line", "stops"),
    [
        (True, {"policy_step": 0}, {}, True),
        (False, {"policy_step": 0}, {}, False),  # an engine that was given weights had a canary
        (True, {}, {}, False),  # another program's rollouts
        (True, {"policy_step": 0}, {"skipped": 1}, False),
        (True, {"policy_step": 0}, {"logprob_gap/max": None}, False),  # no response has a gradient
    ],
)
def test_a_first_update_compares_what_the_model_that_trains_sampled(
    shared: bool, entry: dict[str, int], line: dict[str, Any], stops: bool
):
    """The logprobs differ by 0.25 here."""
    shards = SimpleNamespace(entries=lambda: [{"policy_step": 0}, entry], folder="000/rollouts")
    stage = cast(Any, SimpleNamespace(shards=lambda _: shards))
    config = SimpleNamespace(engine_shares_model=shared, model=ModelOptions(precision="fp32"))
    run = cast(Any, SimpleNamespace(config=config, progress=SimpleNamespace(say=print)))
    words = "by 0.25 in logprob .* move 000/rollouts away"
    with pytest.raises(RunStopped, match=words) if stops else nullcontext():
        check_first_update(run, stage, {"skipped": 0, "logprob_gap/max": 0.25, **line})


def test_it_accepts_what_rounding_explains():
    assert CANARY_TOLERANCE == {"fp32": 1e-3, "bf16": 0.1}


@table(("processes", "canaries"), [(0, 2), (1, 4)])
def test_engines_are_tried_once_and_refreshes_but_those_of_the_model_that_trains_have_a_canary(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, processes: int, canaries: int
):
    """Two stages and three evaluations are five refreshes of one engine; the first has a trial."""
    compared: list[tuple[int, int, int]] = []

    def counted(logprobs: Any, rollouts: Any, precision: Any) -> float:
        longest = max(len(r.response_ids) for r in rollouts)
        compared.append((len({r.problem_id for r in rollouts}), len(rollouts), longest))
        return 0.0

    monkeypatch.setattr(canary, "logprob_gap", counted)
    engine = ("--engine.processes", processes)
    words = ("train", write_config(tmp_path), "--run-dir", tmp_path / "run", *engine)
    assert command(*words).status == 0
    assert compared.pop(0) == (4, 5, 6)  # the config's longest
    assert compared == [(1, 16, 2)] * canaries


def test_engines_sleep_at_once():
    """Each waits until all three do the same."""
    together = Barrier(3, timeout=10)
    engines = Engines(cast(Any, None), cast(Any, SimpleNamespace(policy=None)))
    engines._engines = cast(Any, [SimpleNamespace(sleep=together.wait) for _ in range(3)])
    engines.sleep()


def test_updates_get_a_gpus_memory_once_an_engine_in_this_process_has_freed_its_cache(monkeypatch):
    """Not if nothing was generated since the last time, or if the engine is elsewhere."""
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("given back"))
    for policy in (object(), None):
        engines = Engines(cast(Any, None), cast(Any, SimpleNamespace(policy=policy)))
        engines._engines = cast(Any, [SimpleNamespace(sleep=lambda: done.append("freed"))])
        engines._used = True
        engines.sleep()
        engines.sleep()
    assert done == ["freed", "given back", "freed", "freed", "freed"]


def test_bf16_logprobs_are_close_to_fp32_ones(experience):
    rollouts = experience.rollouts
    ours = rollout_logprobs(load_policy(ModelOptions()), rollouts, config_of())
    assert logprob_gap(ours, rollouts, "fp32") < 1e-4
    policy = load_policy(ModelOptions(precision="bf16"))
    ours = rollout_logprobs(policy, rollouts, config_of())
    # 8 bits of a logit between 8 and 16 round by up to 0.03
    assert 1e-4 < logprob_gap(ours, rollouts, "bf16") < 0.03
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
