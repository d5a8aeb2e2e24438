"""A stage's metrics from the manifests of its shards, and the line that describes them."""

from dataclasses import replace
from typing import Any

from mugrpo.rollouts.statistics import refresh_metrics, refresh_text
from tests.cases import table
from tests.rollouts.scoring import RIGHT, SKIPPED, WRONG, Fixed, groups, response


def test_a_stages_metrics_by_hand(folder):
    # 12 tokens: groups of two, three and one response of two tokens each
    notes = {"slots": 10, "canary_gap": 0.25, "refresh_seconds": 3.0, "seconds": 1.5}
    folder.write(*groups(2, 3), shard=0, **notes)
    folder.write(response(2, 0), shard=1, slots=6, canary_gap=0.5, seconds=0.5)
    folder.score(Fixed(RIGHT, WRONG, RIGHT, RIGHT, SKIPPED), failure_limit=0.2)
    folder.score(Fixed(WRONG), shard=1)
    metrics = refresh_metrics(folder.rollouts, folder.scores)
    assert metrics.pop("time/score") >= 0
    assert metrics == {
        "rollouts": 6,
        "tokens": 12,
        "mean_length": 2.0,
        "occupancy": 12 / 16,
        "canary_gap": 0.5,
        "behavior_reward": 3 / 5,
        "zero_variance_share": 2 / 3,
        "truncated_share": 0.0,
        "status/right": 3,
        "status/skipped": 1,
        "status/wrong": 2,
        "groups_right/0.000": 1,
        "groups_right/0.500": 1,
        "groups_right/1.000": 1,  # two of the two that count
        "time/refresh": 3.0,
        "time/generate": 2.0,
    }


def test_means_of_what_is_logged_by_hand_and_an_older_runs_shard_has_none(folder):
    folder.write(*groups(2), shard=0)
    folder.write(*groups(1), shard=1)
    folder.write(*groups(1), shard=2)
    some = replace(RIGHT, logged={"rewards/short/mean": [1.0], "logged/a": [2.0, 4.0]})
    other = replace(WRONG, logged={"rewards/short/mean": [0.25]})
    folder.score(Fixed(some, other), shard=0, overlong_buffer=0.9)  # the penalty loses nothing
    folder.score(Fixed(some), shard=1)
    folder.score(Fixed(RIGHT), shard=2)
    assert "logged_sums" not in folder.scores.entry(2)
    metrics = refresh_metrics(folder.rollouts, folder.scores)
    assert metrics["rewards/short/mean"] == (1 + 0.25 + 1) / 3
    assert metrics["logged/a"] == (2 + 4 + 2 + 4) / 4


def line(unvaried: float | None, **statuses: int) -> dict[str, Any]:
    counts = {f"status/{name}": count for name, count in statuses.items()}
    return {"rollouts": sum(statuses.values()), "zero_variance_share": unvaried, **counts}


def test_a_stages_statuses_are_one_line():
    assert refresh_text(line(0.5, error=1, no_answer=2, right=37, unfinished=160), 10) == (
        "  200 rollouts: error 1 (0.5%), no answer 2 (1.0%), right 37 (18.5%), "
        "unfinished 160 (80.0%)"
    )
    assert "\n" not in refresh_text(line(None, right=3), 10)


@table(("share", "shown"), [(0.9, "90%"), (0.958, "96%"), (1.0, "100%")])
def test_too_many_groups_without_a_gradient_are_a_warning_with_their_share(share, shown):
    said, warning = refresh_text(line(share, wrong=8), 10).split("\n")
    assert said == "  8 rollouts: wrong 8 (100.0%)"
    assert warning == (
        f"  warning: in {shown} of the groups all rewards are equal; they give no gradient. "
        "Problems are too hard or too easy for the model, or the reward never varies"
    )
    assert "warning" not in refresh_text(line(0.899, wrong=8), 10)
