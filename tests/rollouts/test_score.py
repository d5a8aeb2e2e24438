"""Scoring rollouts: what the task sees, what stops the run, what is counted, what length costs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.records import FinishReason, GroupKey, Outcome, Response, Rollout, Score, Status
from mugrpo.optimize import samples
from mugrpo.rollouts.score import overlong_penalty, response_text, scored
from mugrpo.rollouts.statistics import refresh_metrics, refresh_text
from tests.builders import chain_tokenizer
from tests.cases import table
from tests.rollouts.scoring import (
    CUT,
    PROBLEMS,
    RIGHT,
    SKIPPED,
    SLOW,
    WRONG,
    Fixed,
    Folder,
    failure,
    groups,
    response,
)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_an_answer_is_the_text_without_its_end_and_the_ids_with_it(folder):
    folder.write(response(3, 0, "3+2=5"), response(4, 0, "5,", cut=True))
    task = Fixed(RIGHT, WRONG)
    folder.score(task, truncated="scored")
    one, other = GroupKey("p3", 0), GroupKey("p4", 0)
    assert task.asked == [
        Response(PROBLEMS[3], "3+2=5", [5, 12, 4, 14, 7, 1], FinishReason.STOP, group=one),
        Response(PROBLEMS[4], "5,", [7, 15], FinishReason.LENGTH, group=other),
    ]


@table("cut", [False, True])
def test_special_tokens_stay_in_a_text_but_for_its_end_and_padding(cut):
    """In what rewards get, and what people read."""
    tokenizer = chain_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"]})  # id 16
    ended = [] if cut else [1]
    said = replace(
        response(3, 0, cut=cut), response_ids=np.array([16, 7, 0, 16, 4, *ended], np.int32)
    )
    assert tokenizer.decode([0, 1], skip_special_tokens=True) == ""
    assert {response_text(said, tokenizer), samples.response(said, RIGHT, tokenizer)["text"]} == {
        "<think>5<think>2"
    }


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("truncated", "asked", "scores"),
    [
        ("zero", ["1", "3", "5"], [RIGHT, CUT, WRONG, CUT, RIGHT]),
        ("masked", ["1", "3", "5"], [RIGHT, CUT, WRONG, CUT, RIGHT]),
        ("scored", ["1", "2", "3", "4", "5"], [RIGHT, WRONG, RIGHT, WRONG, RIGHT]),
    ],
)
def test_truncated_responses_are_not_judged_unless_asked_and_every_score_is_in_its_place(
    folder, truncated, asked, scores, ahead
):
    folder.write(*(response(0, n, str(n + 1), cut=n in (1, 3)) for n in range(5)))
    task = Fixed(RIGHT, WRONG, RIGHT, WRONG, RIGHT, ahead=ahead)
    assert folder.score(task, truncated=truncated) == scores
    assert [answer.text for answer in task.asked] == asked


@table("truncated", ["zero", "masked"])
def test_what_compares_a_group_gets_all_of_it_and_a_cut_response_still_has_no_verdict(
    folder, truncated
):
    folder.write(*(response(n // 2, n % 2, str(n + 1), cut=n in (0, 3)) for n in range(4)))
    logged = {"rewards/f/mean": [0.5], "logged/a": [7.0]}
    task = Fixed(replace(RIGHT, logged=logged), WRONG, RIGHT, failure("cut"))
    task.groups = True
    assert folder.score(task, truncated=truncated) == [CUT, WRONG, RIGHT, CUT]
    said = [(answer.text, answer.group, answer.finish_reason) for answer in task.asked]
    stop, cut = FinishReason.STOP, FinishReason.LENGTH
    one, other = GroupKey("p0", 0), GroupKey("p1", 0)
    assert said == [("1", one, cut), ("2", one, stop), ("3", other, stop), ("4", other, cut)]
    assert folder.scores.entry(0)["logged_sums"] == {"logged/a": 7.0}


def test_what_an_environment_said_reaches_the_task_and_a_failure_is_no_number(folder):
    said = [
        Outcome(0.25, logged={"tools/calls": 2}, messages=[{"role": "a"}]),
        Outcome(failure="the worker died"),
        Outcome(failure="not finished", unfinished=True),
        Outcome(logged={"tools/calls": 5}),
    ]
    turns = {"turns": np.array([0], np.int32), "loss_mask": np.array([True, True])}
    responses = [
        replace(response(0, n, "1"), environment=one, **turns) for n, one in enumerate(said)
    ]
    folder.write(*responses, response(0, 4, "1", cut=True))
    task = Fixed(RIGHT, WRONG)
    scores = folder.score(task, failure_limit=1.0)
    assert [answer.environment_reward for answer in task.asked] == [0.25, None]
    assert [answer.messages for answer in task.asked] == [[{"role": "a"}], None]
    expected = {"right": 1.0, "error": None, "unfinished": 0.0, "wrong": 0.0, "truncated": 0.0}
    assert [(score.status, score.reward) for score in scores] == [*expected.items()]
    assert scores[1].parts == {"reason": "the environment: the worker died"}
    entry = folder.scores.entry(0)
    assert entry["logged_sums"] == {"logged/tools/calls": 7}
    assert entry["logged_counts"] == {"logged/tools/calls": 2}


def test_one_failure_more_than_the_limit_stops_at_once_and_publishes_nothing(folder):
    folder.write(*groups(10))
    task = Fixed(failure("boom"), RIGHT, SLOW, failure("boom"), RIGHT, RIGHT)
    words = r"^3 of a shard's 10 .* = 0\.2 allows; 2 of them: error: boom\. Fix .*--force[^\n]*$"
    with pytest.raises(RunStopped, match=words):
        folder.score(task, failure_limit=0.2)
    assert len(task.asked) == 4  # 3 failures of 10 are more than 2
    assert not folder.scores.folder.exists() and 0 not in folder.scores
    folder.write(*groups(10))
    verdicts = [failure("boom"), *[RIGHT] * 8, SLOW]
    assert folder.score(Fixed(*verdicts), failure_limit=0.2) == verdicts
    entry = folder.scores.entry(0)
    assert entry["statuses"] == {"error": 1, "right": 8, "unfinished": 1}
    assert (entry["rewarded"], entry["reward_sum"]) == (9, 8.0)


def test_counts_of_a_shard_by_hand(folder):
    """Groups: both rewards; all right; right and skipped; nothing known; one right, one cut."""
    folder.write(*groups(2, 2, 3, 2), response(4, 0), response(4, 1, cut=True))
    boom = failure("boom")
    verdicts = [RIGHT, WRONG, RIGHT, RIGHT, RIGHT, SKIPPED, RIGHT, boom, SKIPPED, RIGHT]
    folder.score(Fixed(*verdicts), failure_limit=0.5)
    entry = folder.scores.entry(0)
    assert entry["rows"] == 11
    counts = {"right": 6, "wrong": 1, "skipped": 2, "error": 1, "truncated": 1}
    assert entry["statuses"] == counts
    assert (entry["reward_sum"], entry["rewarded"]) == (6.0, 8)  # all but skipped and failed
    assert (entry["groups"], entry["zero_variance_groups"]) == (5, 3)
    assert entry["rollouts_sha256"] == folder.rollouts.entry(0)["sha256"]
    assert entry["seconds"] >= 0


def test_a_shard_is_scored_if_its_scores_are_of_exactly_these_rollouts_by_this_judge(folder):
    assert not scored(folder.rollouts, folder.scores, 0)
    folder.write(*groups(2))
    assert not scored(folder.rollouts, folder.scores, 0)
    for judge, other in (("a7", "b8"), ("b8", "a7")):
        folder.score(Fixed(RIGHT, WRONG), judge=judge)
        assert folder.scores.entry(0)["judge"] == judge
        assert scored(folder.rollouts, folder.scores, 0)
        assert scored(folder.rollouts, folder.scores, 0, judge)
        assert not scored(folder.rollouts, folder.scores, 0, other)
    folder.write(response(0, 0), response(0, 1, "6"))
    assert not scored(folder.rollouts, folder.scores, 0)
    assert not scored(folder.rollouts, folder.scores, 0, "b8")


def test_groups_are_counted_by_the_share_right_if_they_have_a_verdict(folder):
    """Groups: two graded; two cut, of a problem without a verdict; one of two right, one cut."""
    folder.write(*groups(2), response(1, 0, cut=True), response(1, 1, cut=True))
    folder.write(response(2, 0), response(2, 1, cut=True), shard=1)
    graded = Score(Status.GRADED, 0.4)
    task = Fixed(graded, graded, graded, RIGHT, RIGHT, WRONG)
    task.undecided = ("p0", "p1")
    folder.score(task, truncated="zero")
    task.verdicts = iter([RIGHT, WRONG])
    folder.score(task, shard=1, truncated="scored")
    first, second = folder.scores.entries()
    assert first["undecided"] == ["p0", "p1"] and first["groups_right"] == {}
    assert (first["truncated"], first["statuses"]) == (2, {"graded": 2, "truncated": 2})
    assert (second["undecided"], second["groups_right"]) == ([], {"0.500": 1})
    assert (second["truncated"], second["statuses"]) == (1, {"right": 1, "wrong": 1})
    refresh = refresh_metrics(folder.rollouts, folder.scores)
    assert refresh["truncated_share"] == 3 / 6
    folder.write(*groups(4, 8, 3, 2))
    quarter = [RIGHT, WRONG, CUT, WRONG]
    verdicts = [*quarter * 3, RIGHT, SKIPPED, CUT, SKIPPED, SKIPPED]
    folder.score(Fixed(*verdicts), failure_limit=1.0)
    # 1 of 4, 2 of 8, 1 of 2: a reward of 0 for a cut response counts, an unknown one does not
    assert folder.scores.entry(0)["groups_right"] == {"0.250": 2, "0.500": 1}


def test_a_stages_metrics_by_hand(folder):
    # 12 tokens: groups of two, three and one response of two tokens each
    notes = {"slots": 10, "refresh_seconds": 3.0, "seconds": 1.5}
    folder.write(*groups(2, 3), shard=0, **notes)
    folder.write(response(2, 0), shard=1, slots=6, seconds=0.5)
    folder.score(Fixed(RIGHT, WRONG, RIGHT, RIGHT, SKIPPED), failure_limit=0.2)
    folder.score(Fixed(WRONG), shard=1)
    metrics = refresh_metrics(folder.rollouts, folder.scores)
    assert metrics.pop("time/score") >= 0
    assert metrics == {
        "rollouts": 6,
        "tokens": 12,
        "mean_length": 2.0,
        "occupancy": 12 / 16,
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


@table(("share", "shown"), [(0.9, "90%"), (0.958, "96%"), (1.0, "100%")])
def test_too_many_groups_without_a_gradient_are_a_warning_with_their_share(share, shown):
    said, warning = refresh_text(line(share, wrong=8), 10).split("\n")
    assert said == "  8 rollouts: wrong 8 (100.0%)"
    assert warning.startswith(f"  warning: in {shown} of the groups all rewards are equal; ")
    assert "warning" not in refresh_text(line(0.899, wrong=8), 10)
    said = refresh_text(line(0.5, error=1, no_answer=2, right=37, unfinished=160), 10)
    counts = "error 1 (0.5%), no answer 2 (1.0%), right 37 (18.5%), unfinished 160 (80.0%)"
    assert said == f"  200 rollouts: {counts}"  # statuses are one line
    assert "\n" not in refresh_text(line(None, right=3), 10)


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


@table("truncated", ["zero", "masked"])
def test_a_cut_response_loses_1_and_those_without_a_reward_nothing(folder, truncated):
    folder.write(*(long(9, i) for i in range(2)), long(10, 2, cut=True))
    verdicts = [failure("boom"), SKIPPED]
    cut = Score(Status.TRUNCATED, -1.0, {"overlong": -1.0})
    options = {"overlong_buffer": SHARE, "failure_limit": 1.0}
    assert folder.score(Fixed(*verdicts), truncated=truncated, **options) == [*verdicts, cut]
