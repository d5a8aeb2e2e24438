"""What failed and truncated responses count in an update."""

from dataclasses import replace

import pytest

from mugrpo.disk.records import FinishReason, Score, Status
from mugrpo.optimize.experience import Experience
from tests.cases import table
from tests.updates import assert_same_gradients, config_of, part, step

REDUCTIONS = ("token_mean", "sequence_mean", "constant")


@table("reduction", REDUCTIONS)
def test_a_failed_score_leaves_the_statistics_but_not_the_denominator(experience, reduction):
    with_it = part(experience, [0, 1, 2, 3], [1, 0, None, 0])
    without = part(experience, [0, 1, 3], [1, 0, 0])
    config = config_of(reduction=reduction)
    metrics, gradients = step(with_it, config)
    _, expected = step(without, config)
    lengths = [len(r.response_ids) for r in with_it.rollouts]
    # The rest is divided by a denominator that counts the failed one too.
    factor = {
        "token_mean": (sum(lengths) - lengths[2]) / sum(lengths),
        "sequence_mean": 3 / 4,
        "constant": 3 / 4,
    }[reduction]
    assert_same_gradients(gradients, {n: g * factor for n, g in expected.items()})
    assert metrics["failed_share"] == 1 / 4
    assert metrics["batch_reward"] == pytest.approx(1 / 3)


def truncated_case(experience: Experience, status: Status) -> Experience:
    one = part(experience, [0, 1, 2, 3], [1, 0, 0, 0])
    third = Score(status, 0.0 if status.rewarded else None)
    return replace(one, scores=[*one.scores[:2], third, one.scores[3]])


@table(("option", "same_as"), [("zero", Status.WRONG), ("masked", Status.ERROR)])
def test_a_truncated_response_counts_as_wrong_or_as_failed(experience, option, same_as):
    config = config_of(rewards={"truncated": option})
    metrics, gradients = step(truncated_case(experience, Status.TRUNCATED), config)
    _, expected = step(truncated_case(experience, same_as), config)
    assert_same_gradients(gradients, expected, rtol=1e-6)
    rollouts = truncated_case(experience, Status.TRUNCATED).rollouts
    cut = [one.finish_reason is FinishReason.LENGTH for one in rollouts]
    assert metrics["truncated_share"] == sum(cut) / 4 and metrics["failed_share"] == 0
