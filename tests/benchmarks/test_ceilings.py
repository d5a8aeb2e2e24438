"""Floors are arithmetic on rates, so with fixed rates their seconds are known."""

from __future__ import annotations

import pytest
import torch

import ceilings as ceilings_of_machine
from ceilings import Ceilings, generation_floor, update_floor
from mugrpo.extensions.lab.plan.counts import Group, Shape, decoded, passed, prefill

SHAPE = Shape(
    hidden=8, layers=2, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocab=32, tied=True
)
GROUPS = [Group(5, [2, 7, 7]), Group(9, [1, 1, 3])]


class Known(Ceilings):
    """A machine of one FLOP a second, with a practically infinitely fast bus."""

    peak = 1.0

    def matmul(self, form, m, k, n):
        return 1.0

    def copy(self):
        return 1e30


def flop(work):
    return SHAPE.forward(work.tokens, work.pairs, work.positions).flop


def test_at_one_flop_a_second_a_floor_is_the_count():
    floor = update_floor(Known(), SHAPE, GROUPS, 64)
    assert floor["shared"] == pytest.approx(3 * flop(passed(GROUPS, shared=True)))
    assert floor["plain"] == pytest.approx(3 * flop(passed(GROUPS, shared=False)))
    assert floor["adamw"] == pytest.approx(SHAPE.adamw().flop)
    assert floor["total"] == pytest.approx(floor["shared"] + floor["adamw"])

    generation = generation_floor(Known(), SHAPE, GROUPS, 4)
    assert generation["prefill"] == pytest.approx(flop(prefill(GROUPS, shared=True)))
    assert generation["decode"] == pytest.approx(flop(decoded(GROUPS)))


@pytest.mark.parametrize(
    ("dtype", "each"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.int8, 2)]
)
def test_a_slow_bus_makes_decode_wait_for_its_cache(dtype: torch.dtype, each: int):
    class Slow(Known):
        def copy(self):
            return 0.5

    steps = decoded(GROUPS)
    generation = generation_floor(Slow(dtype=dtype), SHAPE, GROUPS, 4)
    linear = flop(steps) - SHAPE.attention_flop(steps.pairs)
    read = 2 * each * 2 * 1 * 4 * steps.pairs  # keys and values of 2 layers, a head of 4
    assert generation["decode"] == pytest.approx(linear + read / 0.5)


def test_rates_are_measured_once_per_shape():
    ceilings = Ceilings(longest=0.001, cold_bytes=2**14)
    rates = [ceilings.matmul(form, 3, 8, 16) for form in ("forward", "inputs", "weights")]
    assert all(rate > 0 for rate in rates) and ceilings.peak == max(rates)
    assert ceilings.matmul("forward", 3, 8, 16) == rates[0]
    assert set(ceilings.described()) == {
        "forward 3x8x16",
        "inputs 3x8x16",
        "weights 3x8x16",
        "copy GB/s",
    }


def test_int8_is_multiplied_exactly_in_every_way_that_is_measured():
    """Two ways on a CPU with oneDNN; both give the sums of whole numbers."""
    ceilings = Ceilings(longest=0.001, cold_bytes=1, dtype=torch.int8)  # one copy of the weights
    drawn = []

    def random(*sizes: int) -> torch.Tensor:
        drawn.append(torch.randint(-9, 10, sizes, dtype=torch.int8))
        return drawn[-1]

    ceilings._random = random  # type: ignore[method-assign]
    products = [call() for call in ceilings._integers(3, 8, 16)]
    x, *weights = (numbers.int() for numbers in drawn)
    assert len(products) == len(weights) >= 1
    for product, weight in zip(products, weights, strict=True):
        assert torch.equal(product.bfloat16(), (x @ weight.T).bfloat16())
    assert ceilings.matmul("forward", 3, 8, 16) == ceilings.gflops["forward", 3, 8, 16] > 0


def test_the_command_has_a_rate_in_each_precision_and_floors_that_exist():
    found = ceilings_of_machine.main(["--tiny"])
    assert len(found["gflops"]) == 3 * 6  # phases x layers, the head included
    assert all(rates.keys() == {"fp32", "bf16", "int8"} for rates in found["gflops"].values())
    assert ["update" in floors for floors in found["floors"].values()] == [True, True, False]
