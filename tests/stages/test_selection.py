"""Which groups vary, by hand."""

from mugrpo.config.rewards import RewardOptions
from mugrpo.disk.records import Score, Status
from mugrpo.run.stage import group_varies
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
