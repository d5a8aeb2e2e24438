"""Prices of generation by hand, and in which direction they go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.plan import generation
from mugrpo.extensions.lab.plan.counts import Shape
from mugrpo.extensions.lab.plan.generation import EnginePrices, Engines, generate, room
from mugrpo.extensions.lab.plan.simulate import Requests, occupancy
from mugrpo.extensions.lab.plan.text import size_lines
from tests.extensions.lab.plan.cases import FAST, TINY, machine, setting

ALONE = Engines(count=1, slots=2, tensor_parallel=1, groups=100, streams=False, share=0.0)
FIVE = Requests(
    np.array([10, 20, 30, 40, 50]),
    np.array([3, 1, 2, 4, 2]),
    np.array([True, True, True, True, False]),
)


def test_five_requests_in_two_slots_by_hand():
    """The steps of test_simulate.py, at 1,000 operations a second.

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


def test_weights_in_8_bits_are_read_faster_and_leave_room_by_hand():
    """132 of the 160 weights are in layers: 132 + 28 x 2 bytes a step instead of 320 in bf16.

    Keys have 12 bytes. Half of 1,760 bytes leave 692 beside the weights, instead of 560.
    """
    slow = machine(fp32=FAST, bf16=FAST, memory=1000.0, memory_gib=1760 / 2**30)
    prices = EnginePrices(TINY, slow, "bf16", quantized=True)
    seconds = prices.seconds(occupancy(FIVE, 2))
    assert seconds.sum() == pytest.approx(5 * 0.188 + 238 * 0.012 + 5 + 3.5 + 10)
    half = Engines(1, 3, 1, 100, True, 0.5)
    assert room(half, prices, 8) == pytest.approx(692 / 12)
    assert room(half, replace(prices, quantized=False), 8) == pytest.approx(560 / 12)


@pytest.mark.parametrize(("quantization", "gib"), [(None, "2"), ("fp8", "1")])
def test_the_plan_shows_the_size_of_weights_in_8_bits(quantization: str | None, gib: str):
    """64 layers of 4 x 1024^2 + 3 x 1024 x 4096 weights: 2^30, with 2 bytes or one."""
    shape = Shape(
        hidden=1024,
        layers=64,
        heads=8,
        kv_heads=8,
        head_dim=128,
        intermediate=4096,
        vocab=1024,
        tied=True,
    )
    engine = {"name": "vllm", "quantization": quantization}
    planned = replace(setting(engine=engine, model={"precision": "bf16"}), shape=shape)
    (line,) = [line for line in size_lines(planned) if "of weights on each device" in line]
    assert f"an engine: {gib} GiB of weights" in line


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
    assert list(pieces.ends) == [1, 3, 4, 6] and list(stream.ends) == [1, 3, 4, 4]


def test_a_large_stage_goes_on_at_the_pace_of_its_simulated_part(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(1)
    prompts, responses = groups(rng, 2000)
    prices = EnginePrices(TINY, machine(), "fp32")
    engines = Engines(1, 16, 1, 10_000, True, 0.0)
    whole = generate(prompts, responses, engines, prices)
    monkeypatch.setattr(generation, "SIMULATED", 2000)
    part = generate(prompts, responses, engines, prices)
    assert part.seconds != whole.seconds
    assert part.seconds == pytest.approx(whole.seconds, rel=0.02)
    assert part.ends == pytest.approx(whole.ends, rel=0.05, abs=0.02 * whole.seconds)


def test_a_cache_that_is_too_small_by_hand():
    """Half of 1,760 bytes: 640 of weights leave 240, 10 tokens of 24 bytes.

    The steps of test_simulate.py: 10 sequences decode in 7 steps, and 5 parts of requests begin.
    A large cache needs 4 steps for 12 sequences, and 3 requests begin.
    """
    small = machine(memory_gib=1760 / 2**30, fp32=FAST)
    prices = EnginePrices(TINY, small, "fp32")
    engines = Engines(1, 3, 1, 100, True, 0.5)
    assert room(engines, prices, 8) == pytest.approx(10)
    prompts, responses = np.array([3, 3, 1]), np.full((3, 1), 5)
    limited = generate(prompts, responses, engines, prices)
    assert limited.seconds == pytest.approx(7 * 1 + 10 * 0.5 + 5 * 2)
    large = generate(prompts, responses, replace(engines, share=0.0), prices)
    assert large.seconds == pytest.approx(4 * 1 + 12 * 0.5 + 3 * 2)
    # Three requests begin. Steps take 2.5, 2, 1.5, 1.5; a part begins in 2 s before each of the
    # last two responses ends, with one step of 1.5 s and with two.
    assert limited.ends == pytest.approx([13.5, 17, 22])


def test_a_static_batch_computes_every_row_to_the_longest_by_hand():
    """Two batches of two: prompts of 1 token for each response, 3 and 1 steps of both rows.

    With a step of 1 s and a sequence of 0.5 s: 3 x 2 and 1 x 2. Slots take 3 steps for 4 sequences,
    the prompts of two groups instead of four responses.
    """
    prompts, responses = np.array([1, 1]), np.array([[4, 2], [2, 2]])
    prices = EnginePrices(TINY, machine(fp32=320.0, request=0.0), "fp32")
    static = generate(prompts, responses, Engines(1, 2, 1, 1, False, 0.0, static=True), prices)
    prompt = (264 + 24 + 56) / 320
    decode = 8 * (320 / 320) + 24 * (2 * (2 + 3 + 4) + 2 * 2) / 320
    assert static.seconds == pytest.approx(4 * prompt + decode + 4 * 1 + 8 * 0.5)
    assert list(static.ends) == pytest.approx([static.ends[0]] * 2 + [static.seconds] * 2)


def test_a_model_that_fits_nowhere_is_refused_with_a_way_out():
    small = machine(memory_gib=1000 / 2**30)
    prices = EnginePrices(TINY, small, "fp32")
    with pytest.raises(UsageError, match=r"do not fit into an engine's .*--engine.tensor_parallel"):
        room(Engines(1, 1, 1, 1, True, 0.7), prices, 10)
