"""What a response's length costs it: DAPO's soft overlong punishment, by hand."""

import pytest

from mugrpo.disk.records import Rollout, Score, Status
from mugrpo.rollouts.score import overlong_penalty
from tests.cases import table
from tests.rollouts.scoring import SKIPPED, Fixed, Folder, failure, response

SHARE = 0.4  # of 10 tokens: responses of 6 are free, those of 10 lose 1


def long(length: int, sample: int = 0, *, cut: bool = False) -> Rollout:
    """Return a response of `length` tokens, including the end-of-sequence token unless `cut`."""
    result = response(0, sample, "5" * (length if cut else length - 1), cut=cut)
    assert len(result.response_ids) == length
    return result


@table(
    ("length", "penalty"),
    [(1, 0.0), (5, 0.0), (6, 0.0), (7, -0.25), (8, -0.5), (9, -0.75), (10, -1.0)],
)
def test_the_last_four_of_ten_tokens_cost_a_quarter_each(length: int, penalty: float):
    assert overlong_penalty(length, 10, 4) == penalty


def test_the_penalty_lowers_the_reward_is_reported_and_keeps_the_status(folder: Folder):
    folder.write(*(long(n, i) for i, n in enumerate((6, 8, 8, 9))))
    right, wrong = Score(Status.RIGHT, 1.0, {"a": 5}), Score(Status.WRONG, 0.25, {"a": 7})
    assert folder.score(Fixed(right, right, wrong, wrong), overlong_buffer=SHARE) == [
        right,
        Score(Status.RIGHT, 0.5, {"a": 5, "overlong": -0.5}),
        Score(Status.WRONG, -0.25, {"a": 7, "overlong": -0.5}),
        Score(Status.WRONG, -0.5, {"a": 7, "overlong": -0.75}),
    ]
    entry = folder.scores.entry(0)
    assert entry["statuses"] == {"right": 2, "wrong": 2}
    assert (entry["reward_sum"], entry["rewarded"]) == (1 + 0.5 - 0.25 - 0.5, 4)


@pytest.mark.parametrize("truncated", ["zero", "masked"])
def test_a_cut_response_is_of_the_largest_length_and_loses_1(folder: Folder, truncated: str):
    folder.write(long(10, cut=True))
    expected = Score(Status.TRUNCATED, -1.0, {"overlong": -1.0})
    assert folder.score(Fixed(), truncated=truncated, overlong_buffer=SHARE) == [expected]


def test_responses_without_a_reward_have_no_penalty(folder: Folder):
    verdicts = [failure("boom"), SKIPPED]
    folder.write(*(long(9, i) for i in range(2)))
    assert folder.score(Fixed(*verdicts), overlong_buffer=SHARE, failure_limit=1.0) == verdicts
