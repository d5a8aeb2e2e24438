"""Prices of generation by hand, and in which direction they go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mugrpo.extensions.lab.plan.generation import (
    EnginePrices,
    Engines,
    Occupancy,
    cache_tokens,
    generate,
    occupancy,
)
from tests.extensions.lab.plan.cases import FAST, TINY, machine

# Five requests in two slots. Responses of 3, 1, 2, 4 and 2 tokens take 2, 1, 1, 3 and 1 steps of a
# slot. Slot A: the first in steps 0 and 1, the fourth in 2, 3 and 4. Slot B: the second in step 0,
# which its first token ends, the third in step 1, the fifth in step 2.
FIVE = occupancy(np.array([10, 20, 30, 40, 50]), np.array([[3], [1], [2], [4], [2]]), 2)


@pytest.mark.parametrize(
    ("on", "prices", "seconds"),
    [
        # At 1,000 operations a second, a sequence takes 2 (132 + 28) operations a step, a key 24.
        # Seven sequences and 11 + 43 + 92 + 42 + 43 keys: 7 x 320 + 231 x 24 = 7,784. Prefill of
        # 150 tokens, 2,825 pairs and five logits: 39,600 + 67,800 + 280. Overheads: 5 steps, 7
        # sequences at 0.5, 5 requests at 2.
        ({}, {}, 7.784 + 107.680 + 18.5),
        # At 1,000 bytes a second, and products free: 4 x 160 bytes a step and 24 a key. Five steps;
        # 231 keys and 7 new ones. Prefill costs nothing here but its requests.
        ({"fp32": FAST, "memory": 1000.0}, {}, 5 * 0.64 + 238 * 0.024 + 18.5),
        # 20 parameters of an adapter: 2 x 20 operations more for each of 150 + 7 tokens.
        ({}, {"adapter": 20}, 7.784 + 107.680 + 6.28 + 18.5),
        # In bf16, 2,000 operations a second on each of two GPUs. A token's activations: 2 sums x 4
        # x 2 bytes, of which each GPU sends 2 (2 - 1) / 2: 16 bytes, for 150 + 7 tokens.
        (
            {"link": 16.0},
            {"precision": "bf16", "tensor_parallel": 2},
            (7.784 + 107.680) / 4 + 157 + 18.5,
        ),
    ],
)
def test_five_requests_by_hand(on, prices, seconds):
    made = EnginePrices(TINY, machine(**on), **{"precision": "fp32", **prices})
    assert made.seconds(FIVE).sum() == pytest.approx(seconds)


def test_more_work_never_takes_less_and_more_engines_never_more():
    rng = np.random.default_rng(0)
    prompts, responses = rng.integers(2, 9, 40), rng.integers(1, 40, (40, 4))
    prices = EnginePrices(TINY, machine(), "fp32")

    def seconds(count: int, slots: int, longer: int = 0, size: int = 40) -> float:
        engines = Engines(count, slots, 1, 0.0)
        made = generate(prompts[:size], responses[:size] + longer, engines, prices)
        assert 0 <= made.tail <= made.seconds
        return made.seconds

    assert seconds(1, 8) < seconds(1, 8, longer=1) < seconds(1, 8, longer=10)
    assert seconds(1, 8, size=20) < seconds(1, 8)
    assert seconds(4, 8) < seconds(2, 8) < seconds(1, 8)
    assert seconds(1, 16) < seconds(1, 8) < seconds(1, 2)


def test_a_cache_that_is_too_small_decodes_fewer_at_once():
    """Half of 1,760 bytes: 640 of weights leave 240, 10 tokens of 24 bytes: one sequence of 8.

    One slot: three requests of 2 s, and 4 steps of 1.5 s each. Three: 4 steps of 2.5 s.
    """
    small = machine(memory_gib=1760 / 2**30, fp32=FAST)
    prices = EnginePrices(TINY, small, "fp32")
    engines = Engines(1, 3, 1, 0.5)
    assert cache_tokens(engines, prices, 8) == pytest.approx(10)
    prompts, responses = np.full(3, 3), np.full((3, 1), 5)
    limited = generate(prompts, responses, engines, prices)
    assert limited.seconds == pytest.approx(3 * (2 + 4 * 1.5))
    large = generate(prompts, responses, replace(engines, share=0.0), prices)
    assert large.seconds == pytest.approx(3 * 2 + 4 * 2.5)


Step = tuple[int, int, int, int]  # active slots, keys read, prompt tokens and pairs computed


def by_step(occupied: Occupancy) -> list[Step]:
    """Return the steps that the intervals stand for, with the mean keys of their interval."""
    steps: list[Step] = []
    for steps_, active, keys, tokens, pairs in zip(
        occupied.steps,
        occupied.active,
        occupied.keys,
        occupied.prompt_tokens,
        occupied.prompt_pairs,
        strict=True,
    ):
        middle = (steps_ - 1) / 2
        for step in range(steps_):
            first = step == 0
            held = keys + active * (step - middle)
            steps.append((active, held, tokens if first else 0, pairs if first else 0))
    return steps


def one_by_one(prompts: np.ndarray, responses: np.ndarray, slots: int) -> list[Step]:
    """Go through the slots step by step, as an engine does."""
    size, lengths = responses.shape[1], responses.ravel().tolist()
    waiting = list(range(len(lengths)))
    running: dict[int, int] = {}  # request -> response tokens so far
    steps: list[Step] = []
    while waiting or running:
        tokens = pairs = 0
        while waiting and len(running) < slots:
            request = waiting.pop(0)
            running[request] = 1
            if request % size == 0:
                prompt = int(prompts[request // size])
                tokens, pairs = tokens + prompt, pairs + prompt * (prompt + 1) // 2
        active = keys = 0
        for request in list(running):
            if running[request] < lengths[request]:
                keys += int(prompts[request // size]) + running[request]
                active, running[request] = active + 1, running[request] + 1
            if running[request] == lengths[request]:
                del running[request]
        steps.append((active, keys, tokens, pairs))
    return steps


def test_two_slots_and_five_requests_by_hand():
    assert by_step(FIVE) == [
        (1, 11, 30, 55 + 210),
        (2, 12 + 31, 30, 465),
        (2, 41 + 51, 90, 820 + 1275),
        (1, 42, 0, 0),
        (1, 43, 0, 0),
    ]
    assert list(FIVE.begun) == list(FIVE.prompts) == [2, 1, 2, 0]
    assert list(FIVE.steps) == [1, 1, 1, 2]
    # The last requests begin in step 2: nothing waits from there on.
    assert list(FIVE.waiting) == [True, True, False, False]


def test_intervals_are_the_steps_of_an_engine():
    rng = np.random.default_rng(0)
    for _ in range(20):
        count, size, slots = (int(rng.integers(1, most)) for most in (12, 4, 8))
        asked = rng.integers(1, 9, count), rng.integers(1, 14, (count, size))
        assert by_step(occupancy(*asked, slots)) == one_by_one(*asked, slots)
