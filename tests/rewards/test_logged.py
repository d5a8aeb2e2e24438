"""What reward functions log and are told of the run: from a worker to metrics, and back again."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from mugrpo.config.base import WorkerOptions
from mugrpo.config.rewards import FunctionOptions
from mugrpo.disk.errors import BrokenReward
from mugrpo.disk.records import FinishReason, Problem, Response, Score, TrainerState
from mugrpo.rewards.grading import Grader
from tests.cases import table
from tests.faults.case import CONFIG, GOOD
from tests.runs import assert_same, finished, killed, read_metrics, write_config

LOGS = """
def logs(completions, completion_ids, trainer_state, log_metric, log_extra):
    stage = trainer_state.stage
    log_metric("step", trainer_state.global_step)
    log_metric("share", trainer_state.global_step / trainer_state.max_steps)
    log_metric("stage", -1 if stage is None else stage)
    log_metric("calls of", len(completions))
    log_extra("length", [len(text) for text in completions])
    log_extra("note", [None, True, "x" * 400, ["a list"]][: len(completions)])
    return [sum(ids) % 5 for ids in completion_ids]

def ones(completions, **_):
    return [None if "x" in text else 0.5 for text in completions]
"""


def scores(tmp_path: Path, *answers: Response, text: str = LOGS, size: int = 4) -> list[Score]:
    (tmp_path / "mine.py").write_text(text)
    rewards = [FunctionOptions(function=f"{tmp_path}/mine.py:{name}") for name in ("logs", "ones")]
    workers = WorkerOptions(count=1, batch_size=size)
    with closing(Grader(tuple(rewards) if text is LOGS else tuple(rewards[:1]), workers)) as grader:
        return list(grader.scores(answers))


def answer(text: str, step: int = 3) -> Response:
    state = TrainerState(step, 12, 0)
    return Response(Problem("p1", "3+9?", "12"), text, [8, 0], FinishReason.STOP, state)


def test_a_call_logs_with_its_first_response_and_columns_with_each(tmp_path):
    first, *others = scores(tmp_path, *map(answer, ("a", "bb", "x", "dd")))
    means = {"rewards/logs/mean": [3.0], "rewards/ones/mean": [0.5]}
    assert first.logged == means | {
        "logged/step": [3.0],
        "logged/share": [0.25],
        "logged/stage": [0.0],
        "logged/calls of": [4.0],
    }
    # `ones` has no reward for the text "x", so that response is not part of its mean.
    assert [score.logged for score in others] == [means, {"rewards/logs/mean": [3.0]}, means]
    extra = [{k: v for k, v in s.parts.items() if k.startswith("extra/")} for s in (first, *others)]
    assert extra == [
        {"extra/length": 1.0, "extra/note": None},
        {"extra/length": 2.0, "extra/note": True},
        {"extra/length": 1.0, "extra/note": "x" * 297 + "..."},
        {"extra/length": 2.0, "extra/note": "['a list']"},
    ]


def test_a_call_has_responses_of_one_policy_only(tmp_path):
    """Two calls, of 1 and 2 responses, although up to four fit into one."""
    judged = scores(tmp_path, answer("a", step=3), answer("b", step=6), answer("c", step=6))
    sizes = [score.logged.get("logged/calls of") for score in judged]
    assert sizes == [[1.0], [2.0], None]


@table(
    ("logging", "message"),
    [
        ("log_metric('a', float('nan'))", r"log_metric\('a'\) got nan, not a finite number"),
        ("log_metric('a', 'b')", r"log_metric\('a'\) got 'b', not a finite number"),
        ("log_extra('a', [1, 2])", r"log_extra\('a'\) got 2 values for 1 completions"),
    ],
)
def test_what_is_no_number_or_has_no_place_breaks_the_contract(tmp_path, logging, message):
    text = f"def logs(log_metric, log_extra, **_):\n    {logging}\n    return [1.0]\n"
    with pytest.raises(BrokenReward, match=message):
        scores(tmp_path, answer("a"), text=text, size=1)


@pytest.fixture
def options(tmp_path: Path) -> tuple[object, ...]:
    """Options of a run of two stages of three updates whose rewards are `logs` and `ones`."""
    (tmp_path / "mine.py").write_text(LOGS)
    (tmp_path / "p.jsonl").write_bytes(GOOD)
    write_config(tmp_path / "config", CONFIG.replace("DATA", str(tmp_path / "p.jsonl")))
    mine = f'["{tmp_path}/mine.py:logs", "{tmp_path}/mine.py:ones"]'
    return (
        *("--task.rewards", mine, "--rewards.truncated", "scored"),
        *("--schedule.stages", 2, "--schedule.growth", 1),
        *("--evaluation.every", 3, "--rollouts.shard_rollouts", 8, "--workers.batch_size", 4),
    )


@pytest.mark.long
def test_a_run_logs_the_same_however_often_it_is_killed(tmp_path, options):
    whole, again = tmp_path / "whole", tmp_path / "again"
    finished(whole, *options)
    killed(again, "score shard without entry", 2, *options)
    killed(again, "score shard without entry", 3, *options)
    finished(again, *options)
    assert_same(again, whole)
    for file in sorted((whole / "samples").iterdir()):
        for sample in json.loads(file.read_text())["samples"]:
            assert sample["reference"] in list("0123456789")
            for response in sample["group"]:
                assert response["parts"]["extra/length"] == len(response["text"])
    lines = [line for line in read_metrics(whole) if "logged/step" in line]
    found = [[line[f"logged/{name}"] for name in ("step", "share", "stage")] for line in lines]
    # Evaluation, stage 0; evaluation, stage 1; evaluation. Six updates in all.
    assert found == [[0, 0, -1], [0, 0, 0], [3, 0.5, -1], [3, 0.5, 1], [6, 1, -1]]
    assert all(line["rewards/ones/mean"] == 0.5 for line in lines)
    for line in lines:  # a reward is the sum of both
        reward = line["behavior_reward" if line["kind"] == "refresh" else "reward"]
        assert line["rewards/logs/mean"] + 0.5 == pytest.approx(reward)
