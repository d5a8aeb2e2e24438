"""Scoring rollouts: what the task sees, what stops the run, and what the manifest counts."""

from dataclasses import replace

import numpy as np
import pytest

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.records import FinishReason, GroupKey, Outcome, Response, Score, Status
from mugrpo.optimize import samples
from mugrpo.rollouts.score import response_text, scored
from mugrpo.rollouts.statistics import refresh_metrics
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
    failure,
    groups,
    response,
)


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
    assert [(score.status, score.reward) for score in scores] == [
        (Status.RIGHT, 1.0),
        (Status.ERROR, None),
        (Status.UNFINISHED, 0.0),
        (Status.WRONG, 0.0),
        (Status.TRUNCATED, 0.0),
    ]
    assert scores[1].parts == {"reason": "the environment: the worker died"}
    entry = folder.scores.entry(0)
    assert entry["logged_sums"] == {"logged/tools/calls": 7}
    assert entry["logged_counts"] == {"logged/tools/calls": 2}


def test_one_failure_more_than_the_limit_stops_at_once_and_publishes_nothing(folder):
    folder.write(*groups(10))
    task = Fixed(failure("boom"), RIGHT, SLOW, failure("boom"), RIGHT, RIGHT)
    with pytest.raises(RunStopped) as stopped:
        folder.score(task, failure_limit=0.2)
    assert len(task.asked) == 4  # 3 failures of 10 are more than 2
    sentence = str(stopped.value)
    assert sentence.startswith(
        "3 of a shard's 10 responses could not be judged, more than rewards.failure_limit = 0.2 "
        "allows; 2 of them: error: boom. "
    )
    assert sentence.endswith(
        "Fix the reward, or raise --rewards.failure_limit; a stage's rollouts are kept (add "
        "--force if a reward's file or options change)"
    )
    assert "\n" not in sentence
    assert not folder.scores.folder.exists() and 0 not in folder.scores


def test_failures_at_the_limit_pass_and_only_the_unfinished_have_a_reward(folder):
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


def test_a_shard_is_scored_if_its_scores_are_of_exactly_these_rollouts(folder):
    assert not scored(folder.rollouts, folder.scores, 0)
    folder.write(*groups(2))
    assert not scored(folder.rollouts, folder.scores, 0)
    folder.score(Fixed(RIGHT, WRONG))
    assert scored(folder.rollouts, folder.scores, 0)
    folder.write(response(0, 0), response(0, 1, "6"))
    assert not scored(folder.rollouts, folder.scores, 0)


def test_a_shard_names_its_judge_and_is_not_scored_by_another(folder):
    folder.write(*groups(2))
    folder.score(Fixed(RIGHT, WRONG), judge="a7")
    assert folder.scores.entry(0)["judge"] == "a7"
    assert scored(folder.rollouts, folder.scores, 0)
    assert scored(folder.rollouts, folder.scores, 0, "a7")
    assert not scored(folder.rollouts, folder.scores, 0, "b8")
    folder.score(Fixed(RIGHT, RIGHT), judge="b8")
    assert scored(folder.rollouts, folder.scores, 0, "b8")
    folder.write(response(0, 0), response(0, 1, "6"))
    assert not scored(folder.rollouts, folder.scores, 0, "b8")


def test_groups_are_counted_by_the_share_right_of_the_responses_that_count(folder):
    folder.write(*groups(4, 8, 3, 2))
    quarter = [RIGHT, WRONG, CUT, WRONG]
    verdicts = [*quarter * 3, RIGHT, SKIPPED, CUT, SKIPPED, SKIPPED]
    folder.score(Fixed(*verdicts), failure_limit=1.0)
    # 1 of 4, 2 of 8, 1 of 2: a reward of 0 for a cut response counts, an unknown one does not
    assert folder.scores.entry(0)["groups_right"] == {"0.250": 2, "0.500": 1}


def test_a_group_without_a_verdict_has_no_share_right_and_all_cut_responses_are_counted(folder):
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
