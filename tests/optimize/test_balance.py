"""Rounds of micro-batches: ranks are equally busy, and nothing is lost or too large."""

import math
import random

import numpy as np

from mugrpo.disk.records import Rollout
from mugrpo.optimize.balance import Price, rounds, work
from mugrpo.optimize.cut import cut, layout
from mugrpo.processes.ranks import Ranks
from tests.cases import table
from tests.optimize.test_cut import row, rows_of

TOKENS_ONLY = Price()
# SmolLM2-135M: 106 M weights in its layers, 28 M in the head, 30 layers with 9 heads of 64 numbers.
SMOLLM2 = Price(logit=28.3 / 106.2, pair=2 * 30 * 9 * 64 / 106.2e6)


def lognormal(groups: int, size: int, prompt: int, median: int, sigma: float) -> list[Rollout]:
    """Groups with prompts of `prompt` tokens, give or take a half; responses have 8,192 at most."""
    generator = np.random.default_rng(0)
    rows = []
    for number in range(groups):
        tokens = int(generator.integers(prompt // 2, prompt * 3 // 2))
        lengths = generator.lognormal(math.log(median), sigma, size).clip(1, 8192).astype(int)
        rows += [row(number, tokens, length) for length in lengths.tolist()]
    return rows


def works(rows: list[Rollout], parts: list[list[int]], share: bool, price: Price) -> list[float]:
    return [work([rows[i] for i in part], price, share=share) for part in parts]


def time(costs: list[float], ranks: int) -> float:
    """Return the sum over rounds of the most expensive micro-batch on any rank."""
    turns = [Ranks(rank, ranks).turns(len(costs)) for rank in range(ranks)]
    return sum(max(costs[piece] for piece, _ in turn) for turn in zip(*turns, strict=True))


@table("share", [True, False])
@table(
    "case",
    [
        (64, 8, 200, 1000, 0.8),
        (64, 8, 200, 400, 1.0),
        (32, 16, 500, 500, 0.6),
        (64, 16, 300, 600, 0.7),
    ],
)
def test_eight_ranks_take_at_most_a_twentieth_longer_than_the_ideal(case, share):
    """The ideal is an eighth of the work of one process, which computes hardly a prompt twice."""
    rows, budget, ranks = lognormal(*case), 16384, 8
    ideal = sum(works(rows, cut(rows, budget, share=share), share, SMOLLM2)) / ranks
    parts = rounds(rows, budget, share=share, ranks=ranks, price=SMOLLM2)
    assert time(works(rows, parts, share, SMOLLM2), ranks) <= 1.05 * ideal


def test_long_prompts_and_a_small_budget_take_no_longer_than_the_plain_cut():
    rows = lognormal(32, 16, 500, 500, 0.6)
    plain = cut(rows, 4096, share=True)
    ideal = sum(works(rows, plain, True, SMOLLM2)) / 8
    parts = rounds(rows, 4096, share=True, ranks=8, price=SMOLLM2)
    assert time(works(rows, parts, True, SMOLLM2), 8) <= 1.05 * ideal


def test_ranks_share_two_groups_by_hand():
    """Two groups of four for three ranks: responses of 20 tokens to prompts of 10.

    Each group keeps three, 10 + 3 x 19 tokens. The third rank gets one of each; they share nothing,
    so they are two padded rows of 30.
    """
    rows = rows_of((10, [20] * 4), (10, [20] * 4))
    parts = rounds(rows, 1000, share=True, ranks=3, price=TOKENS_ONLY)
    assert works(rows, parts, True, TOKENS_ONLY) == [67, 67, 60]
    assert [sorted(i // 4 for i in part) for part in parts] == [[0, 0, 0], [1, 1, 1], [0, 1]]


def test_padded_rows_are_cut_into_equal_parts_by_hand():
    """Eight rows of 10 tokens fit one micro-batch of 80; four ranks get 20 each."""
    rows = rows_of(*[(6, [4])] * 8)
    assert cut(rows, 80, share=False) == [list(range(8))]
    parts = rounds(rows, 80, share=False, ranks=4, price=TOKENS_ONLY)
    assert parts == [[0, 1], [2, 3], [4, 5], [6, 7]]


@table("share", [True, False])
def test_rounds_fit_the_budget_and_every_response_comes_once(share):
    generator = random.Random(0)
    for _ in range(100):
        groups = [
            (generator.randint(1, 60), [generator.randint(1, 40) for _ in range(4)])
            for _ in range(generator.randint(1, 10))
        ]
        rows, budget = rows_of(*groups), generator.randint(1, 1000)
        parts = rounds(rows, budget, share=share, ranks=3, price=Price(0.2, 0.01))
        assert sorted(i for part in parts for i in part) == list(range(len(rows)))
        for part in parts:
            assert len(part) == 1 or layout([rows[i] for i in part], share=share).cost <= budget
        costs = works(rows, parts, share, Price(0.2, 0.01))
        assert costs == sorted(costs, reverse=True)
