"""Scoring rollouts: what the task sees, what stops the run, and what the manifest counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mugrpo.config.run import RewardOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.records import Answer, FinishReason, Problem, Rollout, Score, Status
from mugrpo.disk.shards import RowReader, ShardSet, score_from_row, write_rollouts
from mugrpo.engines.base import Completion
from mugrpo.rollouts.score import Scorer, scored
from mugrpo.rollouts.statistics import described, refresh_metrics
from tests.builders import chain_tokenizer, rollout

PROBLEMS = [Problem(f"p{n}", "3+2=", "5") for n in range(10)]
RIGHT, WRONG = Score(Status.RIGHT, 1.0), Score(Status.WRONG, 0.0)
SKIPPED = Score(Status.SKIPPED, None)
CUT = Score(Status.TRUNCATED, 0.0)


def failure(reason: str, status: Status = Status.ERROR) -> Score:
    return Score(status, None, {"reason": reason})


class Fixed:
    """A task with given verdicts, which records what it is asked."""

    def __init__(self, *verdicts: Score, ahead: bool = False) -> None:
        self.verdicts = iter(verdicts)
        self.ahead = ahead
        self.asked: list[Answer] = []

    def score(self, answers: Iterable[Answer]) -> Iterator[Score]:
        for answer in list(answers) if self.ahead else answers:
            self.asked.append(answer)
            yield next(self.verdicts)


class Folder:
    """Shards of rollouts and scores, and a scorer between them."""

    def __init__(self, root: Path) -> None:
        self.rollouts = ShardSet(root / "rollouts", "rollouts")
        self.scores = ShardSet(root / "scores", "scores")

    def write(self, *responses: Rollout, shard: int = 0, **notes: Any) -> None:
        write_rollouts(self.rollouts, shard, responses, **notes)

    def score(self, task: Fixed, shard: int = 0, **options: Any) -> list[Score]:
        named = {name: options.pop(name) for name in ("judge", "check") if name in options}
        rewards = RewardOptions(**options)
        scorer = Scorer(task, PROBLEMS, chain_tokenizer(), rewards, max_new_tokens=10, **named)  # type: ignore[arg-type]
        scorer.make_shard(self.rollouts, self.scores, shard)
        rows = RowReader(self.scores).rows(
            (shard, n) for n in range(self.scores.entry(shard)["rows"])
        )
        return [score_from_row(row) for row in rows]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def response(problem: int, sample: int, text: str = "5", *, cut: bool = False) -> Rollout:
    """Return a response of the characters of `text`, and an end-of-sequence token unless `cut`."""
    ids = chain_tokenizer()(text)["input_ids"] + ([] if cut else [1])
    reason = FinishReason.LENGTH if cut else FinishReason.STOP
    logprobs = np.zeros(len(ids), np.float32)
    completion = Completion(np.array(ids, np.int32), logprobs, reason)
    return rollout(f"p{problem}", sample, np.array([5, 12, 4, 14], np.int32), completion)


def groups(*sizes: int) -> list[Rollout]:
    """Return groups of these sizes, for the problems p0, p1, ..."""
    return [response(p, sample) for p, size in enumerate(sizes) for sample in range(size)]


# ---- what the task sees ----


def test_an_answer_is_the_text_without_its_end_and_the_ids_with_it(folder):
    folder.write(response(3, 0, "3+2=5"), response(4, 0, "5,", cut=True))
    task = Fixed(RIGHT, WRONG)
    folder.score(task, truncated="scored")
    assert task.asked == [
        Answer(PROBLEMS[3], "3+2=5", [5, 12, 4, 14, 7, 1], FinishReason.STOP),
        Answer(PROBLEMS[4], "5,", [7, 15], FinishReason.LENGTH),
    ]


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


def test_a_rollout_of_an_unknown_problem_is_refused_before_any_is_judged(folder):
    folder.write(response(0, 0), response(99, 0))
    task = Fixed(RIGHT, RIGHT)
    with pytest.raises(UsageError, match=r"shard-00000\.parquet answers problem 'p99', which the"):
        folder.score(task)
    assert task.asked == [] and not folder.scores.folder.exists()


def test_a_stop_between_rollouts_publishes_nothing(folder):
    folder.write(*groups(4))
    passes = iter([False, False, True])

    def check() -> None:
        if next(passes):
            raise RunStopped("asked to")

    task = Fixed(RIGHT, RIGHT, RIGHT, RIGHT)
    with pytest.raises(RunStopped, match="asked to"):
        folder.score(task, check=check)
    assert len(task.asked) == 3 and not folder.scores.folder.exists()


# ---- failures ----


def test_one_failure_more_than_the_limit_stops_at_once_and_publishes_nothing(folder):
    folder.write(*groups(10))
    slow = failure("too slow", Status.TIMEOUT)
    task = Fixed(failure("boom"), RIGHT, slow, failure("boom"), RIGHT, RIGHT)
    with pytest.raises(RunStopped) as stopped:
        folder.score(task, failure_limit=0.2)
    assert len(task.asked) == 4  # 3 failures of 10 are more than 2
    sentence = str(stopped.value)
    assert sentence.startswith(
        "3 of a shard's 10 responses could not be judged, more than rewards.failure_limit = 0.2 "
        "allows; 2 of them: error: boom. "
    )
    assert sentence.endswith(
        "Fix the reward, or raise --rewards.failure_limit; the rollouts are kept (add --force "
        "if a reward's file or options change)"
    )
    assert "\n" not in sentence
    assert not folder.scores.folder.exists() and 0 not in folder.scores


def test_failures_at_the_limit_pass_and_have_no_reward(folder):
    folder.write(*groups(10))
    slow = failure("too slow", Status.TIMEOUT)
    verdicts = [failure("boom"), *[RIGHT] * 8, slow]
    assert folder.score(Fixed(*verdicts), failure_limit=0.2) == verdicts
    entry = folder.scores.entry(0)
    assert entry["statuses"] == {"error": 1, "right": 8, "timeout": 1}
    assert (entry["rewarded"], entry["reward_sum"]) == (8, 8.0)


def test_a_limit_of_0_stops_at_the_first_failure_and_of_1_never(folder):
    folder.write(*groups(4))
    with pytest.raises(RunStopped, match=r"^1 of a shard's 4 responses"):
        folder.score(Fixed(failure("boom")), failure_limit=0.0)
    boom = [failure("boom")] * 4
    assert folder.score(Fixed(*boom), failure_limit=1.0) == boom


def test_skipped_and_truncated_responses_are_no_failures(folder):
    folder.write(*groups(3), response(3, 0, cut=True))
    assert folder.score(Fixed(*[SKIPPED] * 3), failure_limit=0.0) == [*[SKIPPED] * 3, CUT]


def test_29_of_100_failures_are_not_more_than_a_limit_of_29_in_100(folder):
    """0.29 x 100 is 28.999999999999996 in floating point."""
    folder.write(*groups(100))
    verdicts = [failure("boom")] * 29 + [RIGHT] * 71
    assert folder.score(Fixed(*verdicts), failure_limit=0.29) == verdicts
    with pytest.raises(RunStopped, match=r"^30 of a shard's 100 responses"):
        folder.score(Fixed(failure("boom"), *verdicts), failure_limit=0.29)


# ---- what the manifest counts ----


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


def test_two_draws_of_one_problem_are_two_groups(folder):
    again = [
        Rollout(**{**{f: getattr(r, f) for f in Rollout.__slots__}, "occurrence": 1})
        for r in groups(2)
    ]
    folder.write(*groups(2), *again)
    folder.score(Fixed(RIGHT, RIGHT, WRONG, WRONG))
    entry = folder.scores.entry(0)
    assert (entry["groups"], entry["zero_variance_groups"]) == (2, 2)


@pytest.mark.parametrize(("truncated", "unvaried"), [("masked", 2), ("zero", 1), ("scored", 2)])
def test_a_masked_response_gives_its_group_no_variance(folder, truncated, unvaried):
    """Groups: two right and one cut; right and wrong; all cut, which never has variance."""
    right = [response(0, 0), response(0, 1), response(0, 2, cut=True)]
    mixed, nothing = groups(0, 2), [response(2, n, cut=True) for n in (0, 1)]
    folder.write(*right, *mixed, *nothing)
    cut = [RIGHT] if truncated == "scored" else []
    folder.score(Fixed(RIGHT, RIGHT, *cut, RIGHT, WRONG, *cut, *cut), truncated=truncated)
    entry = folder.scores.entry(0)
    assert (entry["groups"], entry["zero_variance_groups"]) == (3, unvaried)


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


def test_scores_that_name_no_judge_are_taken_as_they_are(folder):
    """As in runs begun before scores named a judge, and in scores made elsewhere."""
    folder.write(*groups(2))
    folder.score(Fixed(RIGHT, WRONG))
    del folder.scores.entry(0)["judge"]
    assert scored(folder.rollouts, folder.scores, 0, "a7")


# ---- what a stage's line says ----


def test_a_stages_metrics_by_hand(folder):
    # 12 tokens: groups of two, three and one response of two tokens each
    notes = {"slots": 10, "canary_gap": 0.25, "refresh_seconds": 3.0, "seconds": 1.5}
    folder.write(*groups(2, 3), shard=0, **notes)
    folder.write(response(2, 0), shard=1, slots=6, canary_gap=0.5, seconds=0.5)
    folder.score(Fixed(RIGHT, WRONG, RIGHT, RIGHT, SKIPPED))
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
        "status/right": 3,
        "status/skipped": 1,
        "status/wrong": 2,
        "groups_right/0.000": 1,
        "groups_right/0.500": 1,
        "groups_right/1.000": 1,  # two of the two that count
        "time/refresh": 3.0,
        "time/generate": 2.0,
    }


def test_rollouts_made_elsewhere_lack_notes_and_unjudged_ones_a_reward(folder):
    folder.write(*groups(2))
    folder.score(Fixed(SKIPPED, SKIPPED))
    metrics = refresh_metrics(folder.rollouts, folder.scores)
    unknown = ("occupancy", "canary_gap", "behavior_reward", "time/refresh")
    assert [metrics[name] for name in unknown] == [None] * 4
    assert (metrics["zero_variance_share"], metrics["time/generate"]) == (1.0, 0.0)


def test_groups_are_counted_by_the_share_right_of_the_responses_that_count(folder):
    folder.write(*groups(4, 8, 3, 2))
    quarter = [RIGHT, WRONG, CUT, WRONG]
    folder.score(Fixed(*quarter, *quarter, *quarter, RIGHT, SKIPPED, CUT, SKIPPED, SKIPPED))
    # 1 of 4, 2 of 8, 1 of 2: a reward of 0 for a cut response counts, an unknown one does not
    assert folder.scores.entry(0)["groups_right"] == {"0.250": 2, "0.500": 1}


def test_a_masked_truncated_response_does_not_count_in_the_share(folder):
    folder.write(response(0, 0), response(0, 1, cut=True), response(0, 2))
    folder.score(Fixed(RIGHT, WRONG), truncated="masked")
    assert folder.scores.entry(0)["groups_right"] == {"0.500": 1}


def test_scores_of_an_older_run_have_no_shares(folder):
    folder.write(*groups(2))
    folder.score(Fixed(RIGHT, WRONG))
    del folder.scores.entry(0)["groups_right"]
    metrics = refresh_metrics(folder.rollouts, folder.scores)
    assert not any(key.startswith("groups_right/") for key in metrics)


def line(unvaried: float | None, **statuses: int) -> dict[str, Any]:
    counts = {f"status/{name}": count for name, count in statuses.items()}
    return {"rollouts": sum(statuses.values()), "zero_variance_share": unvaried, **counts}


def test_a_stages_statuses_are_one_line():
    assert described(line(0.5, error=1, no_answer=2, right=37, timeout=160)) == (
        "  200 rollouts: error 1 (0.5%), no answer 2 (1.0%), right 37 (18.5%), timeout 160 (80.0%)"
    )
    assert "\n" not in described(line(None, right=3))


@pytest.mark.parametrize(("share", "shown"), [(0.9, "90%"), (0.958, "96%"), (1.0, "100%")])
def test_too_many_groups_without_a_gradient_are_a_warning_with_their_share(share, shown):
    said, warning = described(line(share, wrong=8)).split("\n")
    assert said == "  8 rollouts: wrong 8 (100.0%)"
    assert warning == (
        f"  warning: in {shown} of the groups all rewards are equal; they give no gradient. "
        "Problems are too hard or too easy for the model, or the reward never varies"
    )
    assert "warning" not in described(line(0.899, wrong=8))
