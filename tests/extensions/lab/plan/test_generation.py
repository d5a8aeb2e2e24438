"""Prices of generation by hand, and in which direction they go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.plan.generation import (
    EnginePrices,
    Engines,
    Occupancy,
    Requests,
    cache_tokens,
    generate,
    occupancy,
)
from tests.extensions.lab.plan.cases import FAST, TINY, machine

ALONE = Engines(count=1, slots=2, tensor_parallel=1, groups=100, streams=False, share=0.0)
FIVE = Requests(
    np.array([10, 20, 30, 40, 50]),
    np.array([3, 1, 2, 4, 2]),
    np.array([True, True, True, True, False]),
)


def test_five_requests_in_two_slots_by_hand():
    """The steps below, at 1,000 operations a second.

    A sequence takes 2 (132 + 28) operations a step, a key 24. Seven sequences and 11 + 43 + 92 +
    42 + 43 keys: 7 x 320 + 231 x 24 = 7,784. Prefill of 100 tokens, 1,550 pairs and four logits:
    26,400 + 37,200 + 224. Overheads: 5 steps, 7 sequences at 0.5, 5 requests at 2.
    """
    seconds = EnginePrices(TINY, machine(), "fp32").seconds(occupancy(FIVE, 2))
    assert seconds.sum() == pytest.approx(7.784 + 63.824 + 5 + 3.5 + 10)


def test_reading_weights_and_cache_by_hand():
    """At 1,000 bytes a second, and products free: 4 x 160 bytes a step and 24 a key.

    Five steps; 231 keys and 7 new ones. Prefill costs nothing here but its requests.
    """
    slow = machine(fp32=FAST, memory=1000.0)
    seconds = EnginePrices(TINY, slow, "fp32").seconds(occupancy(FIVE, 2))
    assert seconds.sum() == pytest.approx(5 * 0.64 + 238 * 0.024 + 5 + 3.5 + 10)


def test_a_key_and_an_adapter_have_prices_by_hand():
    """231 keys at 0.25 s; 20 parameters beside the model: 2 x 20 operations more for a token.

    Seven sequences and 100 prompt tokens: 4,280 operations.
    """
    slow = machine(key=0.25)
    seconds = EnginePrices(TINY, slow, "fp32", adapter=20).seconds(occupancy(FIVE, 2))
    assert seconds.sum() == pytest.approx(7.784 + 63.824 + 4.28 + 18.5 + 231 / 4)


def test_two_gpus_halve_the_products_and_add_up_activations_by_hand():
    """In bf16: 2,000 operations a second each. A token's activations: 2 sums x 4 x 2 bytes.

    Each GPU sends 2 (2 - 1) / 2 of them: 16 bytes, for 100 prompt tokens and 7 of decode.
    """
    pair = machine(link=16.0)
    seconds = EnginePrices(TINY, pair, "bf16", tensor_parallel=2).seconds(occupancy(FIVE, 2))
    assert seconds.sum() == pytest.approx((7.784 + 63.824) / 4 + 107 + 5 + 3.5 + 10)


def groups(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(2, 9, count), rng.integers(1, 40, (count, 4))


@pytest.mark.parametrize("streams", [True, False])
def test_more_work_never_takes_less_and_more_engines_never_more(streams: bool):
    rng = np.random.default_rng(0)
    prompts, responses = groups(rng, 40)
    prices = EnginePrices(TINY, machine(), "fp32")

    def seconds(count: int, slots: int, longer: int = 0, size: int = 40) -> float:
        engines = Engines(count, slots, 1, 5, streams, 0.0)
        made = generate(prompts[:size], responses[:size] + longer, engines, prices)
        assert 0 <= made.tail <= made.seconds
        return made.seconds

    assert seconds(1, 8) < seconds(1, 8, longer=1) < seconds(1, 8, longer=10)
    assert seconds(1, 8, size=20) < seconds(1, 8)
    assert seconds(4, 8) < seconds(2, 8) < seconds(1, 8)
    assert seconds(1, 16) < seconds(1, 8) < seconds(1, 2)


def test_an_engine_that_streams_wastes_no_slots_between_pieces():
    """Two pieces of a long and a short response each, two slots.

    They take 3, 1, 3 and 1 steps. One piece after the other takes 3 + 3 steps. In a stream the
    third response begins after the second, in step 1, and the fourth after the first, in step 3.
    """
    prompts, responses = np.array([1, 1]), np.array([[4, 2], [4, 2]])
    free = machine(fp32=FAST, sequence=0.0, request=0.0)
    prices = EnginePrices(TINY, free, "fp32")
    pieces = generate(prompts, responses, Engines(1, 2, 1, 1, False, 0.0), prices)
    stream = generate(prompts, responses, Engines(1, 2, 1, 1, True, 0.0), prices)
    assert (pieces.seconds, stream.seconds) == (6.0, 4.0)
    # Nothing waits from the start of each piece; in the stream, from step 3 on.
    assert (pieces.tail, stream.tail) == (6.0, 1.0)


def test_a_model_that_fits_nowhere_is_refused_with_a_way_out():
    small = machine(memory_gib=1000 / 2**30)
    prices = EnginePrices(TINY, small, "fp32")
    with pytest.raises(UsageError, match=r"do not fit into an engine's .*--engine.tensor_parallel"):
        cache_tokens(Engines(1, 1, 1, 1, True, 0.7), prices, 10)


def test_a_cache_that_is_too_small_decodes_fewer_at_once():
    """Half of 1,760 bytes: 640 of weights leave 240, 10 tokens of 24 bytes: one sequence of 8.

    One slot: three requests of 2 s, and 4 steps of 1.5 s each. Three: 4 steps of 2.5 s.
    """
    small = machine(memory_gib=1760 / 2**30, fp32=FAST)
    prices = EnginePrices(TINY, small, "fp32")
    engines = Engines(1, 3, 1, 100, True, 0.5)
    assert cache_tokens(engines, prices, 8) == pytest.approx(10)
    prompts, responses = np.full(3, 3), np.full((3, 1), 5)
    limited = generate(prompts, responses, engines, prices)
    assert limited.seconds == pytest.approx(3 * (2 + 4 * 1.5))
    large = generate(prompts, responses, replace(engines, share=0.0), prices)
    assert large.seconds == pytest.approx(3 * 2 + 4 * 2.5)


Step = tuple[int, int, int, int]  # active slots, keys read, prompt tokens and pairs computed


def requests(prompts: list[int], responses: list[int], fresh: list[bool] | None = None) -> Requests:
    fresh = fresh or [True] * len(prompts)
    return Requests(np.array(prompts), np.array(responses), np.array(fresh))


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


def one_by_one(requests: Requests, slots: int) -> list[Step]:
    """Go through the slots step by step, as an engine does."""
    waiting = list(range(len(requests.responses)))
    running: dict[int, int] = {}  # request -> response tokens so far
    steps: list[Step] = []
    while waiting or running:
        tokens = pairs = 0
        while waiting and len(running) < slots:
            request = waiting.pop(0)
            running[request] = 1
            prompt = int(requests.prompts[request])
            if requests.fresh[request]:
                tokens, pairs = tokens + prompt, pairs + prompt * (prompt + 1) // 2
        active = keys = 0
        for request in list(running):
            if running[request] < requests.responses[request]:
                keys += int(requests.prompts[request]) + running[request]
                active, running[request] = active + 1, running[request] + 1
            if running[request] == requests.responses[request]:
                del running[request]
        steps.append((active, keys, tokens, pairs))
    return steps


def test_two_slots_and_five_requests_by_hand():
    """Responses of 3, 1, 2, 4 and 2 tokens take 2, 1, 1, 3 and 1 steps of a slot.

    Slot A: the first in steps 0 and 1, the fourth in 2, 3 and 4. Slot B: the second in step 0,
    which its first token ends, the third in step 1, the fifth in step 2.
    """
    asked = requests([10, 20, 30, 40, 50], [3, 1, 2, 4, 2], [True, True, True, True, False])
    occupied = occupancy(asked, 2)
    assert by_step(occupied) == [
        (1, 11, 30, 55 + 210),
        (2, 12 + 31, 30, 465),
        (2, 41 + 51, 40, 820),
        (1, 42, 0, 0),
        (1, 43, 0, 0),
    ]
    assert list(occupied.begun) == [2, 1, 2, 0]
    assert list(occupied.prompts) == [2, 1, 1, 0]
    assert list(occupied.steps) == [1, 1, 1, 2]
    # The last requests begin in step 2: nothing waits from there on.
    assert list(occupied.waiting) == [True, True, False, False]


@pytest.mark.parametrize("seed", range(20))
def test_intervals_are_the_steps_of_an_engine(seed: int):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 30))
    asked = Requests(rng.integers(1, 9, count), rng.integers(1, 14, count), rng.random(count) < 0.6)
    slots = int(rng.integers(1, 8))
    assert by_step(occupancy(asked, slots)) == one_by_one(asked, slots)


def test_every_token_is_decoded_once_however_many_requests_there_are():
    rng = np.random.default_rng(0)
    responses = np.rint(rng.lognormal(6, 1, 131_072)).astype(np.int64) + 1
    asked = Requests(np.full(len(responses), 100), responses, np.ones(len(responses), bool))
    occupied = occupancy(asked, 256)
    fed = responses - 1
    assert (occupied.steps * occupied.active).sum() == fed.sum()
    keys = (fed * 100 + fed * (fed + 1) // 2).sum()
    assert (occupied.steps * occupied.keys).sum() == pytest.approx(keys, rel=1e-12)
    assert occupied.begun.sum() == len(responses)
    assert occupied.active.max() == 256
