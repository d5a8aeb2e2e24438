"""Whole plans by hand: 8 updates of 2 problems x 2 responses of 3 tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.plan.lengths import Lengths, Seen
from mugrpo.extensions.lab.plan.schedules import Planner
from mugrpo.extensions.lab.plan.setting import as_configured, with_updates
from tests.extensions.lab.plan.cases import config, machine, setting


def test_stages_of_a_number_of_updates():
    assert with_updates(config(), 3) == [3, 3, 2]
    assert with_updates(config(), 100) == [8]
    twice = config(schedule={"passes_per_batch": 2})
    assert with_updates(twice, 4) == [4, 4, 4, 4]
    with pytest.raises(UsageError, match="--schedules 3: a stage has a whole number of batches"):
        with_updates(twice, 3)
    growing = config(schedule={"stages": 3, "batches_per_stage": 2, "growth": 2.0})
    assert as_configured(growing.schedule) == [2, 4, 8]


def test_a_plan_by_hand():
    """A stage of 4 updates has 8 groups of 2 responses, 16 requests, all in slots at once.

    Prefill: 8 prompts of 2 tokens, 528 operations each, 72 for 3 pairs, 56 for logits: 5,248. Two
    steps decode 16 sequences with 3 and with 4 keys: 2 x 16 x 320 + 112 x 24 = 12,928. Overheads:
    2 steps, 2 x 16 sequences at 0.5, 16 requests at 2: 50 s.

    An update: two groups of 2 + 2 + 2 tokens, 3 + 2 (4 + 3) = 17 pairs and 6 logits:
    2 (6 x 264 + 17 x 24 + 6 x 56) = 4,656, three times. AdamW 2.24, a micro-batch 1, an update 2.
    """
    planner = Planner(setting())
    plan = planner.planned([4, 4], "colocated", 1, 1)
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
    assert planner.checkpoints([4, 4]) == [4, 8] and planner.checkpoints([8]) == [8]
    half = {part: seconds / 2 for part, seconds in plan.parts.items()}
    assert plan.of_stages == [pytest.approx(half)] * 2


def test_updates_begin_after_the_first_of_four_shards():
    """Shards of 4 rollouts: three quarters of the shorter half are hidden behind the other."""
    planner = Planner(setting(rollouts={"shard_rollouts": 4}, on=machine(devices=2)))
    one = planner.planned([4, 4], "separate", 1, 1)
    both = planner.planned([4, 4], "overlapped", 1, 1)
    shorter = min(one.parts["generate"], one.parts["optimize"])
    assert one.seconds - both.seconds == pytest.approx(0.75 * shorter)
    assert (both.devices, planner.planned([8], "colocated", 2, 2).devices) == (2, 2)


def test_fewer_refreshes_cost_less_of_them_and_the_tail_is_never_longer():
    uneven = Lengths((Seen(0, np.array([2]), np.array([[3, 30]])),), "a test")
    planner = Planner(replace(setting(engine={"slots": 4}), lengths=uneven))
    plans = [planner.plans(with_updates(planner.setting.config, n))[0] for n in (1, 2, 4, 8)]
    refreshes = [plan.parts["refresh"] for plan in plans]
    assert refreshes == [800, 400, 200, 100]
    generate = [plan.parts["generate"] for plan in plans]
    assert generate == sorted(generate, reverse=True)


def test_a_model_that_fits_nowhere():
    tiny = machine(memory_gib=1e-6)
    with pytest.raises(UsageError, match=r"weights, gradients and moments take .*choose a --mach"):
        Planner(setting(on=tiny)).plans([8])


def test_the_canary_by_hand():
    """Four responses of 3 tokens to prompts of 2, each prompt computed: 4 x 656 operations.

    Two steps decode 4 sequences with 3 and 4 keys: 8 x 320 + 28 x 24 operations, 2 s, 8 x 0.5 and 4
    requests at 2 s. The logprobs: 4 x (4 tokens, 10 pairs, 3 logits): 4 x (1,056 + 240 + 168).
    """
    planner = Planner(setting())
    assert planner.refresh(1) == pytest.approx(100 + 2.624 + 3.232 + 2 + 4 + 8 + 5.856)


def test_an_evaluation_begins_with_a_refresh_and_the_last_has_greedy_responses():
    """Problems of 2 tokens, responses of 3: one problem with one response takes 8.2 s or so."""
    options = {"every": 4, "samples": 1, "final_samples": 2, "final_greedy": True}
    planner = Planner(setting(evaluation=options, task={"eval_problems": 1}))
    once = planner._sampled_once(0, 1, 1)
    assert once == pytest.approx((528 + 72 + 56 + 2 * 320 + 7 * 24) / 1000 + 2 + 1 + 2 + 0.25)
    twice = planner._sampled_once(0, 1, 2)
    found = planner.evaluations(1)
    assert found == pytest.approx({0: 100 + once, 4: 100 + once, 8: 100 + once + twice})
    stages = planner.planned([4, 4], "colocated", 1, 1).of_stages
    assert stages[0]["evaluate"] == pytest.approx(found[0] + found[4])


def test_dynamic_sampling_samples_until_groups_differ_and_trains_on_all_of_them():
    """Half of the groups differ: 16 are sampled for 8; at most twice as many, if fewer do."""
    chosen = {"name": "dynamic", "max_oversampling": 2.0}
    made = replace(setting(sampling=chosen), varied=0.5)
    assert (made.sampled(0, 4), made.groups(4), made.computed(0)) == (16, 8, 1.0)
    assert replace(made, varied=0.1).sampled(0, 4) == 16
    plain = replace(setting(), varied=0.5)
    assert (plain.sampled(0, 4), plain.computed(0)) == (8, 0.5)
    # A KL term gives groups a gradient whose rewards are equal, unless they are masked.
    kl = setting(reference={"name": "kl", "coefficient": 0.1})
    for mask, share in ((True, 0.5), (False, 1.0)):
        advantage = kl.config.advantage.model_copy(update={"zero_variance_mask": mask})
        config = kl.config.model_copy(update={"advantage": advantage})
        assert replace(kl, config=config, varied=0.5).computed(0) == share


def test_an_adapters_memory_is_that_of_a_frozen_model_and_its_own_state():
    assert setting().state_bytes() == 16 * 160
    assert setting(lora={"rank": 1}).state_bytes() == 4 * 160 + 16 * 61
