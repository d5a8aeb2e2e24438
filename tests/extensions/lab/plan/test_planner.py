"""Whole plans by hand: 8 updates of 2 problems x 2 responses of 3 tokens."""

from __future__ import annotations

import numpy as np
import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.plan.lengths import Lengths
from mugrpo.extensions.lab.plan.planner import with_updates
from tests.extensions.lab.plan.cases import config, machine, planner


def test_stages_of_a_number_of_updates():
    assert with_updates(config(), 3) == [3, 3, 2]
    assert with_updates(config(), 100) == [8]
    twice = config(schedule={"passes_per_batch": 2})
    assert with_updates(twice, 4) == [4, 4, 4, 4]
    with pytest.raises(UsageError, match="--schedules 3: a stage has a whole number of batches"):
        with_updates(twice, 3)
    growing = config(schedule={"stages": 3, "batches_per_stage": 2, "growth": 2.0})
    assert planner(schedule=growing.schedule.model_dump()).own_stages() == [2, 4, 8]


def test_a_plan_by_hand():
    """A stage of 4 updates has 8 groups of 2 responses, 16 requests, all in slots at once.

    Prefill: 8 prompts of 2 tokens, 528 operations each, 72 for 3 pairs, 56 for logits: 5,248. Two
    steps decode 16 sequences with 3 and with 4 keys: 2 x 16 x 320 + 112 x 24 = 12,928. Overheads:
    2 steps, 2 x 16 sequences at 0.5, 16 requests at 2: 50 s.

    An update: two groups of 2 + 2 + 2 tokens, 3 + 2 (4 + 3) = 17 pairs and 6 logits:
    2 (6 x 264 + 17 x 24 + 6 x 56) = 4,656, three times. AdamW 2.24, a micro-batch 1, an update 2.
    """
    made = planner()
    plan = made.planned([4, 4])
    assert plan.parts == pytest.approx(
        {
            "refresh": 2 * 100,
            "generate": 2 * (5.248 + 12.928 + 50),
            "score": 32 * 0.25,
            "logprobs": 0.0,
            "optimize": 8 * (3 * 4.656 + 2.24 + 1 + 2),
            "checkpoint": 0.0,
            "evaluate": 0.0,
        }
    )
    assert plan.seconds == pytest.approx(sum(plan.parts.values()))
    assert plan.tail == pytest.approx(plan.parts["generate"])  # all begin at once, none waits
    assert made.checkpoints([4, 4]) == made.checkpoints([8]) == [8]  # every 64 updates


def test_fewer_refreshes_cost_less_of_them_and_the_tail_is_never_longer():
    made = planner(engine={"slots": 4})
    made.lengths = Lengths(np.array([2]), np.array([[3, 30]]), "a test")
    plans = [made.planned(with_updates(made.config, n)) for n in (1, 2, 4, 8)]
    refreshes = [plan.parts["refresh"] for plan in plans]
    assert refreshes == [800, 400, 200, 100]
    generate = [plan.parts["generate"] for plan in plans]
    assert generate == sorted(generate, reverse=True)


def test_a_model_that_fits_nowhere():
    tiny = machine(memory_gib=1e-6)
    with pytest.raises(UsageError, match=r"weights, gradients and moments take .*choose a --mach"):
        planner(on=tiny).require_fit()


def test_an_evaluation_begins_with_a_refresh():
    """A problem of 2 tokens, a response of 3: 8.2 s or so, before, in the middle and at the end."""
    made = planner(evaluation={"every": 4}, task={"eval_problems": 1})
    once = (528 + 72 + 56 + 2 * 320 + 7 * 24) / 1000 + 2 + 1 + 2 + 0.25
    assert made.evaluations(8) == pytest.approx(3 * (100 + once))
    assert made.planned([4, 4]).parts["evaluate"] == made.evaluations(8)
