"""Dynamic sampling by hand: which groups vary, and which batches they fill."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from mugrpo.config.rewards import RewardOptions
from mugrpo.disk.records import Score, Status
from mugrpo.disk.shards import Place
from mugrpo.stages.stage import Group, batches, group_varies
from tests.cases import table

R, W, N = Status.RIGHT, Status.WRONG, Status.NO_ANSWER
CUT, SKIPPED, ERROR, SLOW = Status.TRUNCATED, Status.SKIPPED, Status.ERROR, Status.UNFINISHED


@table(
    ("statuses", "varies"),
    [
        ([R, W, W], True),
        ([R, R, R], False),
        ([W, W, W], False),
        ([W, N, N], False),  # neither is right
        ([R, N], True),
        ([R, R, ERROR], False),  # no verdict
        ([R, R, SLOW], True),  # an unfinished response is wrong
        ([R, SKIPPED], False),
        ([ERROR, SKIPPED], False),
        ([R, W, ERROR, SKIPPED], True),
        ([], False),
    ],
)
def test_a_group_varies_if_some_are_right_and_some_are_not(statuses, varies):
    """Whatever the rewards are: here all differ."""
    scores = [Score(s, float(n) if s.rewarded else None) for n, s in enumerate(statuses)]
    assert group_varies(scores, RewardOptions()) is varies


@table(("truncated", "varies"), [("zero", True), ("masked", False), ("scored", True)])
def test_a_cut_response_is_not_right_unless_it_is_masked(truncated, varies):
    rewards = RewardOptions(truncated=truncated)
    assert group_varies([Score(s, 0.0) for s in (R, R, CUT)], rewards) is varies
    assert group_varies([Score(s, 0.0) for s in (W, W, CUT)], rewards) is False


@table(
    ("graded", "varies"),
    [
        (((0.9, 0), (0.3, 0)), True),
        (((0.3, 0), (0.3, 0)), False),
        (((0.3, 0), (0.1, -0.2)), False),  # only the penalty on length differs
        (((0.3, 0), (0.3, -0.2)), True),  # 0.3 and 0.5 without it
        (((0.3, 0), None), True),  # cut: 0
        (((0.0, 0), None), False),
    ],
)
def test_without_a_verdict_a_group_varies_if_its_rewards_do(graded, varies):
    """(reward, penalty on length in it) of each response; None for one that was cut."""
    scores = [
        Score(CUT, 0.0) if one is None else Score(Status.GRADED, one[0], {"overlong": one[1]})
        for one in graded
    ]
    assert group_varies(scores, RewardOptions()) is varies


def numbered(*problems: int) -> list[Group]:
    """Return groups of these problems. The row of each is its place in the order."""
    return [Group(problem, [Place(0, row)]) for row, problem in enumerate(problems)]


def rows(result: list[list[Group]]) -> list[list[int]]:
    return [[group.places[0].row for group in batch] for batch in result]


def test_different_problems_fill_batches_in_order_and_the_rest_is_left_out():
    assert rows(batches(numbered(4, 1, 3, 0, 2), 2)) == [[0, 1], [2, 3]]


def test_a_problem_that_a_batch_already_has_waits_for_the_next():
    assert rows(batches(numbered(7, 7, 8, 8), 2)) == [[0, 2], [1, 3]]


def test_an_earlier_batch_is_filled_before_a_later_one():
    # the second 5 opens a batch; the first 6 and 8 fill the first one, 9 and 6 the second
    assert rows(batches(numbered(5, 5, 6, 8, 9, 6), 3)) == [[0, 2, 3], [1, 4, 5]]


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 5))
def test_every_batch_is_full_of_different_problems_and_no_group_is_used_twice(problems, size):
    result = batches(numbered(*problems), size)
    assert all(len({group.problem for group in batch}) == len(batch) == size for batch in result)
    used = [row for batch in rows(result) for row in batch]
    assert len(set(used)) == len(used)
    assert all(problems[group.places[0].row] == group.problem for b in result for group in b)
    # The groups that are left over could not fill another batch.
    left = Counter(problems[row] for row in set(range(len(problems))) - set(used))
    assert len(left) < size
