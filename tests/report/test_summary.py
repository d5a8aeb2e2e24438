"""What a finished run says if it has learned nothing."""

import math
from typing import Any

from mugrpo.report.summary import measured, standstill, summarize
from mugrpo.rollouts.statistics import refresh_text
from tests.cases import table


def stage(number: int, *updates: tuple[float, float | None, int]) -> list[dict[str, Any]]:
    """Return the metrics of a stage: (gradient norm, mean reward, skipped) of each update."""
    return [
        {"kind": "update", "stage": number, "grad_norm": g, "batch_reward": r, "skipped": s}
        for g, r, s in updates
    ]


LEARNS = (0.3, 0.25, 0)
WRONG = (0.0, 0.0, 0)
SKIPPED = (math.nan, 0.25, 1)


@table(
    ("lines", "says"),
    [
        ([], None),
        ([{"kind": "refresh", "stage": 0}], None),
        ([*stage(0, WRONG), *stage(1, WRONG, LEARNS)], None),
        (stage(0, WRONG, WRONG), "nothing was learned: none of the 2 updates had a gradient."),
        (stage(0, WRONG, SKIPPED), "1 of 2 updates were not applied, and the others had no"),
    ],
)
def test_a_run_without_any_gradient_learned_nothing(lines: list[dict[str, Any]], says: str | None):
    sentence = standstill(lines, 48)
    assert sentence is None if says is None else says in (sentence or "")


def test_closing_lines_have_the_interval_of_each_accuracy_if_it_is_known():
    lines = [
        {"kind": "evaluation", "update": u, "accuracy": a, "problems": 10, **ends}
        for u, a, ends in (
            (0, 0.25, {}),  # of an earlier version
            (8, 0.8, {"accuracy_low": 0.4902, "accuracy_high": 0.9433}),
        )
    ]
    assert summarize(lines).splitlines()[1] == (
        "accuracy    0.250 before, 0.800 (0.490 to 0.943) after update 8 "
        "(10 held-out problems; 95 % intervals)"
    )
    assert summarize(lines[:1]).splitlines()[1].endswith("(10 held-out problems)")


def test_closing_lines_have_greedy_accuracy_if_both_ends_have_it():
    first, last = (
        {"kind": "evaluation", "update": update, "accuracy": 0.1, "greedy/accuracy": greedy}
        for update, greedy in ((0, 0.0), (8, 0.75))
    )
    assert summarize([first, last]).splitlines()[2] == "greedy      0.000 before, 0.750 after"
    assert "greedy" not in "".join(summarize([{**first, "greedy/accuracy": None}, last]))
    # without evaluations of its own, measured by `mugrpo evaluate` at its end
    (line,) = [one for one in summarize([last]).splitlines() if "accuracy" in one]
    assert line.startswith("accuracy    0.100 after update 8 ") and "before" not in line


def test_closing_lines_have_memory_what_was_skipped_and_the_refreshes_of_grpo():
    lines = [
        {"kind": "update", "update": n, "micro_batch_tokens": budget, "skipped": n % 2}
        for n, budget in enumerate((None, 2048, 1024, 4096), 1)
    ]
    text = summarize(lines)
    assert "memory      3 updates with micro_batch_tokens lowered, down to 1024" in text
    assert "skipped     2 updates" in text
    lines = [{"kind": "update", "update": n} for n in range(1, 6)]
    refreshes = [{"kind": "refresh", "update": n} for n in (0, 4)]
    assert "1 made; GRPO with one every 4 updates makes 2" in summarize([*refreshes[:1], *lines])
    assert "GRPO" not in summarize([*refreshes, *lines])


@table(("share", "blamed"), [(0.5, True), (0.499, False), (None, False)])
def test_truncated_responses_are_blamed_on_their_limit(share: float | None, blamed: bool):
    line = {"kind": "refresh", "stage": 1, "rollouts": 16, "truncated_share": share}
    sentence = standstill([line, *stage(1, WRONG)], 48) or ""
    assert ("rollouts.max_new_tokens = 48" in sentence) is blamed
    assert ("how hard" in sentence) is not blamed
    line |= {"zero_variance_share": 1.0}
    assert ("rollouts.max_new_tokens = 48" in refresh_text(line, 48)) is blamed
    assert ("too hard" in refresh_text(line, 48)) is not blamed
    assert ("max_new_tokens" in refresh_text({**line, "zero_variance_share": 0.5}, 48)) is blamed


def test_an_evaluation_by_itself_is_told_in_a_few_lines():
    line = {"accuracy": 0.5, "accuracy_low": 0.3, "accuracy_high": 0.7, "problems": 8}
    line |= {"reward": 0.4, "pass@4": 0.75, "time/evaluate": 3}
    line |= {"greedy/accuracy": 0.625, "greedy/accuracy_low": 0.1}
    line |= {"status/right": 16, "status/error": 0}
    assert measured(line, 4).splitlines() == [
        "accuracy    0.500 (0.300 to 0.700) after update 4 (8 held-out problems)",
        "reward      0.400",
        "pass@4      0.750",
        "greedy      0.625",
        "responses   16 right",
    ]


def test_without_a_verdict_closing_lines_have_rewards_each_by_itself_and_no_accuracy():
    """Wrong answers in perfect form: the sum is above 1."""
    lines = [
        {
            **{"kind": "evaluation", "update": update, "accuracy": None, "problems": 10},
            **{"reward": reward, "rewards/correct/mean": 0.0, "rewards/form/mean": reward},
        }
        for update, reward in ((0, 0.25), (8, 1.5))
    ]
    text = summarize(lines).splitlines()
    assert "reward      0.250 before, 1.500 after update 8 (10 held-out problems)" in text
    assert "            correct, where judged: 0.000 before, 0.000 after" in text
    assert "            form, where judged: 0.250 before, 1.500 after" in text
    assert "accuracy" not in "".join(text) + measured(lines[1], 8)
