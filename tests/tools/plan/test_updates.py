"""Prices of an update by hand, and those of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from mugrpo.optimize.balance import work
from mugrpo.tools.plan.counts import Group, passed
from mugrpo.tools.plan.updates import UpdatePrices, as_rollouts, price_of
from tests.tools.plan.cases import FAST, TINY, config, machine

PROMPTS, RESPONSES = np.array([2]), np.array([[2, 3]])


def test_an_update_by_hand():
    """A prompt of 2 tokens, computed once, and responses of 2 and 3: 2 + 1 + 2 = 5 tokens.

    3 + (2 + 1) + (4 + 3) = 13 pairs, and logits of 5 tokens: 5 x 264 + 13 x 24 + 5 x 56 = 1,912
    operations forward, three times that with the backward pass. AdamW: 14 operations for each of
    160 parameters. Overheads: one micro-batch 1 s, the update 2 s.
    """
    update = UpdatePrices(TINY, machine(), config(), 1).update(PROMPTS, RESPONSES)
    assert update.seconds == pytest.approx(3 * 1.912 + 2.240 + 1 + 2)
    assert (update.rounds, update.balance) == (1, 1.0)


def test_checkpointed_activations_add_a_forward_pass_and_measurements_a_factor():
    checkpointed = config(model={"gradient_checkpointing": True})
    update = UpdatePrices(TINY, machine(), checkpointed, 1, factor=2.0).update(PROMPTS, RESPONSES)
    assert update.seconds == pytest.approx(2 * (4 * 1.912 + 2.240 + 1 + 2))


def test_logprobs_are_a_forward_pass():
    prices = UpdatePrices(TINY, machine(), config(), 1)
    assert prices.logprobs(PROMPTS, RESPONSES) == pytest.approx(1.912)


def test_the_work_of_the_cut_is_the_counted_work():
    """Only the logits after a shared prompt are counted once for each response by the cut."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        prompt, responses = int(rng.integers(20, 90)), rng.integers(1, 60, 6)
        counted = passed([Group(prompt, responses.tolist())], shared=True)
        flop = TINY.forward(counted.tokens, counted.pairs, counted.positions + 5).flop
        rollouts = as_rollouts(np.array([prompt]), responses[None])
        assert work(rollouts, price_of(TINY), share=True) * 264 == pytest.approx(flop)


def test_two_ranks_take_as_long_as_the_more_expensive_half():
    """Two groups of a micro-batch each: one rank makes two rounds, two ranks one."""
    quick = machine(fp32=1000.0, micro_batch=0.0, update=0.0)
    prompts, responses = np.array([2, 2]), np.array([[2, 3], [2, 3]])
    small = config(optimizer={"micro_batch_tokens": 6})
    one = UpdatePrices(TINY, quick, small, 1).update(prompts, responses)
    two = UpdatePrices(TINY, quick, small, 2).update(prompts, responses)
    assert (one.rounds, two.rounds) == (2, 1)
    assert one.seconds == pytest.approx(2 * 3 * 1.912 + 2.240)
    assert two.seconds == pytest.approx(3 * 1.912 + 2.240 / 2)
    assert two.balance == pytest.approx(1.0)


def test_gathering_over_a_slow_link_is_waited_for():
    """In fp32, two gathers and a sum of gradients of 160 parameters: 12 x 160 / 2 bytes."""
    slow = machine(fp32=FAST, link=960.0, micro_batch=0.0, update=0.0)
    update = UpdatePrices(TINY, slow, config(), 2).update(PROMPTS, RESPONSES)
    assert update.seconds == pytest.approx(update.rounds * 1.0)
