"""Rewards that are missing, change or fail, and rewards that give no gradient."""

import json
import signal
from pathlib import Path

import pytest

from tests.faults.case import Case
from tests.faults.harm import refused, resume_words, stopped
from tests.runs import mugrpo, read_metrics, shards, state

LEARNED_NOTHING = 4  # the exit status if the rewards of each group are equal


@pytest.mark.long
def test_a_reward_changed_by_force_does_not_mix_with_the_old_one(case: Case):
    case.data()
    file = case.folder / "mine.py"
    function = "def judge(completions, **_):\n    return [{}] * len(completions)\n"
    file.write_text(function.format(0.25))
    options = ("--task.rewards", f"{file}:judge", "--rollouts.shard_rollouts", 8)
    options = (*options, "--rewards.truncated", "scored")
    case.starts_in_shards(*options, shards=3)
    ended = mugrpo("score", *case.words(*options), at="score shard without manifest", nth=2)
    assert ended.status == -signal.SIGKILL
    file.write_text(function.format(0.75))
    refused(case.command("score", *case.words(*options)), "a reward function's file changed")
    ended = case.command("score", *case.words(*options, "--force"))
    assert ended.status == 0
    manifest = json.loads((case.run_dir / "stages/000/scores/manifest.json").read_text())
    sums = [entry["reward_sum"] for entry in manifest["shards"].values()]
    assert sums == [6.0, 6.0, 6.0]


@pytest.mark.long
def test_a_judge_that_fails_in_a_later_evaluation_leaves_the_shards(case: Case):
    case.data()
    file, broken = case.folder / "mine.py", case.folder / "broken"
    file.write_text(
        "import os\ndef judge(completions, **_):\n"
        f"    if os.path.exists({str(broken)!r}):\n        raise ValueError('out of order')\n"
        "    return [1.0] * len(completions)\n"
    )
    options = ("--task.rewards", f"{file}:judge", "--evaluation.every", 3)
    ended = mugrpo("train", *case.words(*options), at="checkpoint", nth=1)
    assert ended.status == -signal.SIGKILL
    made = shards(case.run_dir)
    broken.touch()
    ended = case.command("train", *case.words(*options))
    stopped(ended, "could not be judged", "out of order", "rollouts are kept")
    assert shards(case.run_dir) == made
    assert [p.name for p in (case.run_dir / "evaluations").iterdir()] == ["update-000000"]
    broken.unlink()
    assert case.command(*resume_words(ended)).status == LEARNED_NOTHING
    assert {name: shards(case.run_dir)[name] for name in made} == made
    made = [line for line in read_metrics(case.run_dir) if line["kind"] == "evaluation"]
    assert [line["update"] for line in made] == [0, 3]


def test_a_reward_that_is_none_for_all_responses_stops_the_run_before_an_update(case: Case):
    case.data()
    file = case.folder / "mine.py"
    file.write_text("def judge(completions, **_):\n    return [None] * len(completions)\n")
    options = ("--task.rewards", f"{file}:judge", "--rewards.truncated", "scored")
    ended = case.train(*options)
    stopped(ended, "3 of a shard's 24 responses", "skipped: no reward is a number")
    assert "got no reward (skipped)" in ended.out  # told before the first rollout, too
    assert state(case.run_dir).rollouts == (1, 0) and read_metrics(case.run_dir) == []


def test_a_run_with_equal_rewards_ends_with_status_4(tmp_path: Path, case: Case):
    reward = tmp_path / "never.py"
    reward.write_text("def never(completions, **_):\n    return [0.0] * len(completions)\n")
    case.data()
    ended = case.train("--task.rewards", f"{reward}:never", "--schedule.stages", 1)
    assert ended.status == LEARNED_NOTHING, ended
    assert "nothing was learned: none of the 3 updates had a gradient" in ended.err
    updates = [line for line in read_metrics(case.run_dir) if line["kind"] == "update"]
    assert {line["grad_norm"] for line in updates} == {0}
