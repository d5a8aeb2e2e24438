"""Which groups of earlier stages each batch gets, on small pools."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from mugrpo.disk.plans import Place
from mugrpo.rollouts.replay import replayed
from mugrpo.rollouts.selection import Group


def groups(*problems: int) -> list[Group]:
    return [Group(problem, [Place(0, 0, row)]) for row, problem in enumerate(problems)]


def rows(hands: list[list[Group]]) -> list[list[int]]:
    return [[group.places[0].row for group in hand] for hand in hands]


def test_every_group_of_the_pool_comes_once_before_one_comes_again():
    hands = rows(replayed(groups(*range(10)), [groups(100)] * 9, 2, seed=1, stage=3))
    flat = [row for hand in hands for row in hand]
    assert sorted(flat[:10]) == list(range(10)) and len(set(flat[10:])) == 8
    assert flat[:8] != flat[10:]


def test_the_order_depends_on_seed_and_stage():
    pool, batches = groups(*range(10)), [groups(100)] * 5
    orders = [
        rows(replayed(pool, batches, 2, seed=seed, stage=stage))
        for seed, stage in [(1, 1), (1, 1), (2, 1), (1, 2)]
    ]
    assert orders[0] == orders[1] and len({str(order) for order in orders}) == 3


def test_a_group_waits_while_an_update_has_its_problem():
    """The first batch has problem 0, as all groups of the pool but the last."""
    batches = [groups(0), *[groups(5)] * 3]
    hands = rows(replayed(groups(0, 0, 0, 1), batches, 1, seed=0, stage=1))
    assert hands[0] == [3] and sorted(hands[1:]) == [[0], [1], [2]]


def test_too_few_other_problems_give_fewer_groups():
    """Four groups of problems 1 and 2: a batch with problem 1 has only problem 2 to replay."""
    pool = groups(1, 1, 2, 2)
    hands = replayed(pool, [groups(1), groups(3)], 3, seed=0, stage=1)
    assert [sorted(group.problem for group in hand) for hand in hands] == [[2], [1, 2]]
    assert replayed([], [groups(1)], 3, seed=0, stage=1) == [[]]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 6), max_size=12),
    st.lists(st.sets(st.integers(0, 6), min_size=1, max_size=3), min_size=1, max_size=8),
    st.integers(1, 4),
)
def test_no_problem_repeats_and_a_short_hand_has_every_problem_that_is_left(
    pool: list[int], batches: list[set[int]], count: int
):
    hands = replayed(groups(*pool), [groups(*batch) for batch in batches], count, seed=0, stage=1)
    for batch, hand in zip(batches, hands, strict=True):
        problems = Counter(group.problem for group in hand)
        assert max(problems.values(), default=1) == 1 and not problems.keys() & batch
        assert len(hand) == min(count, len(set(pool) - batch))
