"""The cut into micro-batches, and rounds in which ranks are equally busy, by counted tokens."""

import math
import random

import numpy as np

from mugrpo.disk.records import FinishReason, Rollout
from mugrpo.engines.base import Completion
from mugrpo.optimize.balance import Price, rounds, work
from mugrpo.optimize.cut import Layout, cut, layout, split_by_prompt, split_by_tokens
from mugrpo.processes.ranks import Ranks
from tests.builders import rollout
from tests.cases import table

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


SMALL = (32, 16, 500, 500, 0.6, "a small budget")
LONGER = [(32, 16, 500, 500, 0.6), (64, 16, 300, 600, 0.7)]


@table("share", [True, False])
@table("case", [(64, 8, 200, 1000, 0.8), (64, 8, 200, 400, 1.0), *LONGER, SMALL])
def test_eight_ranks_take_at_most_a_twentieth_longer_than_the_ideal(case, share):
    """The ideal is an eighth of the work of one process, which computes hardly a prompt twice.

    With long prompts and a small budget, it does.
    """
    rows, ranks, budget = lognormal(*case[:5]), 8, 4096 if case is SMALL else 16384
    ideal = sum(works(rows, cut(rows, budget, share=share), share, SMOLLM2)) / ranks
    parts = rounds(rows, budget, share=share, ranks=ranks, price=SMOLLM2)
    assert time(works(rows, parts, share, SMOLLM2), ranks) <= 1.05 * ideal


def test_ranks_share_groups_and_padded_rows_by_hand():
    """Two groups of four for three ranks: responses of 20 tokens to prompts of 10. Each group keeps
    three, 10 + 3 x 19 tokens. The third rank gets one of each; they share nothing, so they are two
    padded rows of 30."""
    rows = rows_of((10, [20] * 4), (10, [20] * 4))
    parts = rounds(rows, 1000, share=True, ranks=3, price=TOKENS_ONLY)
    assert works(rows, parts, True, TOKENS_ONLY) == [67, 67, 60]
    assert [sorted(i // 4 for i in part) for part in parts] == [[0, 0, 0], [1, 1, 1], [0, 1]]
    # Eight rows of 10 tokens fit one micro-batch of 80; four ranks get 20 each.
    rows = rows_of(*[(6, [4])] * 8)
    assert cut(rows, 80, share=False) == [list(range(8))]
    parts = rounds(rows, 80, share=False, ranks=4, price=TOKENS_ONLY)
    assert parts == [[0, 1], [2, 3], [4, 5], [6, 7]]


def row(prompt: int, length: int, response: int) -> Rollout:
    """A rollout with a prompt of `length` tokens, all of id `prompt`."""
    ids, logprobs = np.zeros(response, np.int32), np.zeros(response, np.float32)
    completion = Completion(ids, logprobs, FinishReason.STOP)
    return rollout(f"p{prompt}", 0, np.full(length, prompt, np.int32), completion)


def rows_of(*groups: tuple[int, list[int]]) -> list[Rollout]:
    """Rows of groups, (prompt length, response lengths) each; every group has its own prompt."""
    return [row(g, p, r) for g, (p, lengths) in enumerate(groups) for r in lengths]


def test_the_cheaper_layout_by_hand():
    # Alone: 4 rows x (100 + 10). Shared: the prompt once and the responses without their last
    # tokens; 4 copies of the prompt's keys and values cost an eighth.
    rows = rows_of((100, [10, 4, 10, 10]))
    shared = layout(rows, share=True)
    assert shared == Layout(shared=True, computed=100 + 30, padded=100 + 30, copied=400)
    assert shared.cost == 130 + 400 / 8
    plain = layout(rows, share=False)
    assert plain == Layout(shared=False, computed=434, padded=440, copied=0)
    assert plain.cost == 440
    assert not layout(rows_of((100, [10])), share=True).shared  # 100 + 9 + 100 / 8 > 110
    assert not layout(rows_of((100, [10]), (100, [10])), share=True).shared
    assert layout(rows_of((10, [10]), (10, [100])), share=True).shared  # 20 + 108 + 20 / 8 < 220


# Group 1 of the first has the longest response, then 2, then 0. Two groups cost 2 x 40 + 14 + 15
# and an eighth of 4 x 40: 129; the third would make it 120 + 32 + 30 = 182.
THREE = (40, [2, 3]), (40, [5, 11]), (40, [9, 8])


@table(
    ("groups", "budget", "parts"),
    [
        (THREE, 129, [[3, 2, 4, 5], [1, 0]]),
        (THREE, 182, [[3, 2, 4, 5, 1, 0]]),
        (THREE, 181, [[3, 2, 4, 5], [1, 0]]),
        # One group costs 40 + 20 + 10 = 70, two 140: the second starts a micro-batch and is whole.
        ([(40, [11, 11])] * 2, 130, [[0, 1], [2, 3]]),
        # Three rows cost 40 + 30 + 15 = 85, four 100. What is left of group 0 is one row; with the
        # first of group 1 it costs 50 + 20 + 10 = 80.
        ([(40, [11] * 4), (10, [11])], 85, [[0, 1, 2], [3, 4]]),
    ],
)
def test_split_by_prompt_by_hand(groups, budget, parts):
    assert split_by_prompt(rows_of(*groups), budget) == parts


def test_shared_rows_are_cut_by_prompt_and_others_by_length():
    rows = rows_of((200, [60, 5]), (200, [60, 5]))
    assert cut(rows, 450, share=True) == [[0, 1], [2, 3]]
    assert cut(rows, 520, share=False) == [[0, 2], [1, 3]]
    # Longest first. Budget 12: 2 x 5 fits, 3 x 5 does not; 4 x 3 fits, 5 x 3 does not.
    assert split_by_tokens([3, 5, 2, 5, 3, 2, 1], 12) == [[1, 3], [0, 4, 2, 5], [6]]


@table("share", [True, False])
def test_budget_holds_and_every_row_comes_exactly_once(share):
    generator = random.Random(0)
    together = shared = 0
    for _ in range(150):
        groups = [
            (generator.randint(1, 60), [generator.randint(1, 40) for _ in range(4)])
            for _ in range(generator.randint(1, 10))
        ]
        rows, budget = rows_of(*groups), generator.randint(1, 1000)
        price = Price(0.2, 0.01)
        one, three = (
            cut(rows, budget, share=share),
            rounds(rows, budget, share=share, ranks=3, price=price),
        )
        costs = works(rows, three, share, price)
        assert costs == sorted(costs, reverse=True)
        for parts in (one, three):
            assert sorted(row for part in parts for row in part) == list(range(len(rows)))
            for part in parts:
                plan = layout([rows[i] for i in part], share=share)
                assert len(part) == 1 or plan.cost <= budget
                assert plan.computed <= plan.padded
                together += len(part) > 1
                shared += plan.shared
    assert together > 0 and (shared > 0) == share
