"""The canary compares logprobs of engine and trainer, here on values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Barrier
from typing import Any, cast

import numpy as np
import pytest
import torch

from mugrpo.config.engines import HFOptions
from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.records import FinishReason, Problem, Rollout
from mugrpo.model.policy import load_policy
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.rollouts.sampler import Draw, Sampler
from mugrpo.stages.refresh import canary, canary_rollouts, logprob_gap
from mugrpo.stages.sampling import Sampling
from tests.updates import config_of


def rollout(*logprobs: float) -> Rollout:
    """Return a rollout with these behavior logprobs."""
    ids = np.arange(len(logprobs), dtype=np.int32)
    behavior = np.array(logprobs, np.float32)
    return Rollout("1", 0, 0, 0, ids, ids, behavior, FinishReason.LENGTH, 1.0, 0)


ENGINE = [rollout(-1.0, -2.0), rollout(-0.5)]
TRAINER = [np.array([-1.0, -2.25], np.float32), np.array([-0.625], np.float32)]


def checked(
    tolerance: float,
    said: list[str] | None = None,
    rollouts: Sequence[Rollout] = ENGINE,
) -> float | None:
    return canary(
        rollouts,
        lambda _: TRAINER,
        precision="fp32",
        tolerance=tolerance,
        say=(said if said is not None else list[str]()).append,
    )


def test_the_gap_in_fp32_is_the_largest_and_in_bf16_the_mean():
    assert logprob_gap(TRAINER, ENGINE, "fp32") == 0.25
    assert logprob_gap(TRAINER, ENGINE, "bf16") == pytest.approx((0 + 0.25 + 0.125) / 3)


def test_a_gap_within_the_tolerance_passes_and_above_half_of_it_is_reported():
    said: list[str] = []
    assert checked(0.6, said) == 0.25 and said == []
    assert checked(0.4, said) == 0.25
    assert said == [
        "canary: engine and trainer differ by 0.25 in logprob; nothing is wrong yet, but above 0.4 "
        "the run stops"
    ]


def test_a_gap_above_the_tolerance_stops_the_run():
    with pytest.raises(RunStopped, match=r"differ by 0.25 in logprob \(tolerance 0.2\)"):
        checked(0.2)


def test_a_gap_of_nan_stops_the_run():
    broken = [replace(ENGINE[0], behavior_logprobs=np.array([np.nan, 0], np.float32)), ENGINE[1]]
    with pytest.raises(RunStopped, match="differ by nan"):
        checked(0.2, rollouts=broken)


def test_without_rollouts_there_is_nothing_to_compare():
    assert checked(0.0, rollouts=[]) is None


def test_each_engine_answers_the_first_groups():
    draws = [(Problem(name, "1+1=", "2"), 0) for name in "abcde"]

    class Answers:
        """A sampler whose rollouts are of the problems that it is asked for."""

        def sample(self, draws: Sequence[Draw], *_: object, **__: object) -> Iterator[Rollout]:
            yield from (replace(ENGINE[0], problem_id=problem.id) for problem, _ in draws)

    samplers = cast(list[Sampler], [Answers(), Answers()])
    rollouts = canary_rollouts(samplers, draws, HFOptions(), lambda _: None)
    assert [r.problem_id for r in rollouts] == [*"abcd"] * 2


def test_engines_answer_the_canary_and_rest_at_once():
    """Each waits until all three do the same. Their responses keep the engines' order."""
    together = Barrier(3, timeout=10)

    class Waits:
        def __init__(self, name: str) -> None:
            self.name = name

        def sample(self, *_: object, **__: object) -> list[Rollout]:
            together.wait()
            return [replace(ENGINE[0], problem_id=self.name)]

        def rest(self) -> None:
            together.wait()

    waiting: list[Any] = [Waits(name) for name in "cab"]
    rollouts = canary_rollouts(waiting, [], HFOptions(), lambda _: None)
    assert [rollout.problem_id for rollout in rollouts] == ["c", "a", "b"]
    sampling = Sampling(cast(Any, None), cast(Any, None))
    sampling._engines = waiting
    sampling.rest()


def test_bf16_logprobs_are_close_to_fp32_ones(experience):
    rollouts = experience.rollouts
    ours = rollout_logprobs(load_policy(ModelOptions()), rollouts, config_of())
    assert logprob_gap(ours, rollouts, "fp32") < 1e-4
    policy = load_policy(ModelOptions(precision="bf16"))
    ours = rollout_logprobs(policy, rollouts, config_of())
    # 8 bits of a logit between 8 and 16 round by up to 0.03
    assert 1e-4 < logprob_gap(ours, rollouts, "bf16") < 0.03
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
