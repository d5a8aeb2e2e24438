"""Prices of an update by hand, and those of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from counts import Group, forward_flop, passed
from mugrpo.extensions.lab.plan.planner import UpdatePrices, as_rollouts, price_of
from mugrpo.optimize.balance import work
from tests.extensions.lab.plan.cases import FAST, TINY, config, machine

PROMPTS, RESPONSES = np.array([2]), np.array([[2, 3]])


def test_an_update_by_hand():
    """A prompt of 2 tokens, computed once, and responses of 2 and 3: 2 + 1 + 2 = 5 tokens.

    3 + (2 + 1) + (4 + 3) = 13 pairs, and logits of 5 tokens: 5 x 264 + 13 x 24 + 5 x 56 = 1,912
    operations forward, three times that with the backward pass. AdamW: 14 operations for each of
    160 parameters. Overheads: one micro-batch 1 s, the update 2 s.
    """
    seconds, micro_batches = UpdatePrices(TINY, machine(), config(), 1).update(PROMPTS, RESPONSES)
    assert seconds == pytest.approx(3 * 1.912 + 2.240 + 1 + 2)
    assert micro_batches == 1


def test_checkpointed_activations_add_a_forward_pass():
    checkpointed = config(model={"gradient_checkpointing": True})
    seconds, _ = UpdatePrices(TINY, machine(), checkpointed, 1).update(PROMPTS, RESPONSES)
    assert seconds == pytest.approx(4 * 1.912 + 2.240 + 1 + 2)


def test_an_adapter_by_hand():
    """LoRA of rank 1: 4 + 6 beside the queries, twice 4 + 3, 6 + 4, twice 4 + 5, 5 + 4: 61.

    The update's forward pass is 5 x 264 + 13 x 24 + 5 x 56 operations. The model's matrices get
    gradients by inputs, and none by weights; attention has gradients by all that goes in. So it is
    2 x (5 x 264 + 5 x 56) + 3 x 13 x 24, and 3 x 5 x 2 x 61 of the adapter. AdamW: 14 x 61.
    """
    lora = config(lora={"rank": 1})
    prices = UpdatePrices(TINY, machine(), lora, 1)
    assert prices.trained == prices.adapter == 61
    flop = 2 * (5 * 264 + 5 * 56) + 3 * 13 * 24 + 3 * 5 * 2 * 61
    seconds, _ = prices.update(PROMPTS, RESPONSES)
    assert seconds == pytest.approx(flop / 1000 + 14 * 61 / 1000 + 1 + 2)
    # Recomputed activations: one more forward pass of everything.
    again = config(lora={"rank": 1}, model={"gradient_checkpointing": True})
    more, _ = UpdatePrices(TINY, machine(), again, 1).update(PROMPTS, RESPONSES)
    assert more - seconds == pytest.approx((1912 + 5 * 2 * 61) / 1000)


def test_an_adapter_of_some_layers():
    assert (TINY.adapter(1), TINY.adapter(2)) == (61, 122)


def test_ranks_exchange_an_adapters_gradients_and_the_whole_model():
    """Two gathers of 160 parameters in fp32 and gradients of 61: half of 1,280 + 244 bytes."""
    slow = machine(fp32=FAST, link=762.0, micro_batch=0.0, update=0.0)
    prices = UpdatePrices(TINY, slow, config(lora={"rank": 1}), 2)
    seconds, micro_batches = prices.update(PROMPTS, RESPONSES)
    assert seconds == pytest.approx(micro_batches * 1.0)


def test_logprobs_are_a_forward_pass():
    prices = UpdatePrices(TINY, machine(), config(), 1)
    assert prices.logprobs(PROMPTS, RESPONSES) == pytest.approx(1.912)


def test_the_work_of_the_cut_is_the_counted_work():
    """Only the logits after a shared prompt are counted once for each response by the cut."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        prompt, responses = int(rng.integers(20, 90)), rng.integers(1, 60, 6)
        counted = passed([Group(prompt, responses.tolist())], shared=True)
        flop = forward_flop(TINY, replace(counted, positions=counted.positions + 5))
        rollouts = as_rollouts(np.array([prompt]), responses[None])
        assert work(rollouts, price_of(TINY), share=True) * 264 == pytest.approx(flop)


def test_two_ranks_take_as_long_as_the_more_expensive_half():
    """Two groups of a micro-batch each: one rank makes two rounds, two ranks one."""
    quick = machine(fp32=1000.0, micro_batch=0.0, update=0.0)
    prompts, responses = np.array([2, 2]), np.array([[2, 3], [2, 3]])
    small = config(optimizer={"micro_batch_tokens": 6})
    one = UpdatePrices(TINY, quick, small, 1).update(prompts, responses)
    two = UpdatePrices(TINY, quick, small, 2).update(prompts, responses)
    assert one == (pytest.approx(2 * 3 * 1.912 + 2.240), 2)
    assert two == (pytest.approx(3 * 1.912 + 2.240 / 2), 1)


def test_gathering_over_a_slow_link_is_waited_for():
    """In fp32, two gathers and a sum of gradients of 160 parameters: 12 x 160 / 2 bytes."""
    slow = machine(fp32=FAST, link=960.0, micro_batch=0.0, update=0.0)
    seconds, micro_batches = UpdatePrices(TINY, slow, config(), 2).update(PROMPTS, RESPONSES)
    assert seconds == pytest.approx(micro_batches * 1.0)
