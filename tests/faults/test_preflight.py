"""What a run tries before its first rollout, what `mugrpo check` tells, and rewards that fail."""

import re
import signal
from pathlib import Path

import pytest

from mugrpo.disk.shards import ShardSet
from mugrpo.report.summary import LEARNED_NOTHING
from tests.builders import chain_tokenizer
from tests.cases import some
from tests.faults.case import Case, chains
from tests.faults.harm import refused, resume_words, stopped
from tests.runs import mugrpo, read_metrics, shards, state


def judge(case: Case, body: str, head: str = "") -> tuple[str, str]:
    """Write a data set and a reward function with this body; return the option that chooses it."""
    case.data()
    file = case.folder / "mine.py"
    file.write_text(f"{head}\ndef judge(completions, **columns):\n    {body}\n")
    return "--task.rewards", f"{file}:judge"


def all_get(reward: object) -> str:
    return f"return [{reward}] * len(completions)"


@pytest.mark.long
def test_a_reward_that_may_fail_or_does_not_apply_is_only_told(case: Case):
    """None for the made-up completion may be right, and so may an error if all may fail."""
    ended = case.command("check", *case.words(*judge(case, "return [None]")))
    assert ended.status == 0 and "got no reward (skipped)" in ended.out
    failing = (*judge(case, "raise ValueError('odd')"), "--rewards.failure_limit", 1)
    ended = case.command("check", *case.words(*failing))
    assert ended.status == 0 and "got no reward (error)" in ended.out


def unless(path: Path, error: str) -> str:
    """Return the body of a reward function that raises `error` while there is no `path`."""
    return f"if not os.path.exists({str(path)!r}): raise {error}\n    {all_get(1.0)}"


@pytest.mark.long
@pytest.mark.parametrize("limit", some(1, [0.0, 0.5]))
def test_a_judge_that_is_away_stops_a_run_with_rollouts_and_the_same_command_resumes_it(
    case: Case, limit: float
):
    server = case.folder / "up"
    server.touch()
    body = unless(server, "ConnectionError('the server is away')")
    words = [*judge(case, body, "import os"), "--rewards.failure_limit", limit]
    case.starts(*words)
    server.unlink()
    stopped(case.train(*words), "the reference answer", "ConnectionError: the server is away")
    server.touch()
    assert case.train(*words).status == LEARNED_NOTHING  # all rewards are 1


def test_check_shows_prompts_and_rewards_and_makes_nothing(case: Case):
    """The regular expression wants "=7", so a bare reference answer has no answer in it."""
    case.data()
    words = case.words("--evaluation.every", 3)
    ended = case.command("check", *words)
    assert ended.status == 0 and len(case.loads) == 1  # the model is tried, too
    first = chains()[0]["prompt"]
    (prompt, *_), (ids, *_), (trained_on, *_) = (
        re.findall(f"{name} +'?([^'\n]+)", ended.out)
        for name in ("prompt ", "prompt ids", "trained on")
    )
    tokenizer = chain_tokenizer()
    assert ids == f"{tokenizer(prompt)['input_ids']}, not trained on"
    answer, eos = tokenizer(chains()[0]["answer"])["input_ids"], tokenizer.eos_token_id
    assert trained_on == f"{[*answer, eos]}, as "
    assert f"prompt      '{first}" in ended.out
    assert ended.out.count("reward      0 (no_answer) for the reference answer") == 6
    assert not case.run_dir.exists()
    pattern = ("--task.rewards", '{name = "regex", pattern = "([0-9])$"}')
    ended = case.command("check", *case.words(*pattern))
    assert ended.out.count("reward      1 (right) for the reference answer") == 3


def test_check_says_that_a_reward_with_a_state_answers_otherwise_the_second_time(case: Case):
    """The state is the number of calls, as of a reward that scales by what it has seen."""
    body = f"seen.append(1)\n    {all_get('1 / len(seen)')}"
    words = case.words(*judge(case, body, "seen = []"))
    assert "asked twice, the rewards answer differently" in case.command("check", *words).out
    steady = case.words(*judge(case, "return [len(text) / 9 for text in completions]"))
    assert "asked twice" not in case.command("check", *steady).out


ASKS = """
def asks(messages, answer, **_):
    said = [m["content"] for m in messages if m["role"] == "assistant"]
    return {body}
"""


def environment(case: Case, body: str) -> list[object]:
    """Write an environment and return the options that choose it, and its own reward."""
    (case.folder / "asks.py").write_text(ASKS.format(body=body))
    named = ("--environment.name", f"{case.folder}/asks.py:asks")
    return [*named, "--task.rewards", '["environment"]', "--prompt.allow_missing", "true"]


def test_check_asks_the_environment_for_its_reward(case: Case):
    """The first environment pays 0.25 for the reference answer; the second divides by zero."""
    case.data()
    ended = case.command(
        "check",
        *case.words(*environment(case, "0.25 if answer in said else 1.0 if said else '+1='")),
    )
    assert ended.status == 0, ended.err
    assert ended.out.count("reward      0.25 (") == 3
    refused(
        case.command("check", *case.words(*environment(case, "1 / (len(said) - 1)"))),
        "the environment fails on problem",
        "ZeroDivisionError",
    )


def test_check_tells_all_faults_and_memory_last(case: Case, monkeypatch):
    monkeypatch.setattr("mugrpo.run.memory.host_memory", lambda: 1)
    engine = ("--engine.name", "vllm", "--engine.python", "/nowhere/python")
    words = case.words(*engine, *judge(case, "raise ValueError('odd')"))
    ended = case.command("check", *words)
    refused(ended, "3 faults, all said above")
    faults = re.findall("fault [0-9] +(.*)", ended.out)
    for part, fault in zip(("/nowhere/python", "odd", "GiB of memory"), faults, strict=True):
        assert part in fault
    assert not case.run_dir.exists()


def test_check_judges_a_described_machine_in_place_of_this_one(case: Case, monkeypatch):
    """This one has no memory, no vLLM and no GPU. Nothing is loaded, and nothing is left."""
    monkeypatch.setattr("mugrpo.run.memory.host_memory", lambda: 1)
    case.data()
    engine = ("--engine.name", "vllm", "--engine.python", "/nowhere/python")
    words = case.words(*engine, "--task.rewards", '{name = "regex", pattern = "([0-9])$"}')
    ended = case.command("check", *words, "--gpus", 8, "--gpu-memory", 80)
    assert ended.status == 0 and case.loads == [] and not case.run_dir.exists()
    assert "\nranks       1 on 1 of 1 node of 8 GPUs with 80 GiB\n" in ended.out
    assert "\nnot tried " in ended.out
    assert "\nready for 1 node of 8 GPUs with 80 GiB: 3 updates, 24 rollouts, at most" in ended.out
    ranks = ("--distributed.processes", 9)
    ended = case.command("check", *words, *ranks, "--gpus", 8, "--gpu-memory", 80)
    refused(ended, "9 ranks do not get a GPU each", "use --distributed.processes 8")
    for lacking in (["--gpus", 8], ["--nodes", 4], ["--gpus", 0, "--gpu-memory", 80]):
        refused(case.command("check", *words, *lacking), "--gpus 8 --gpu-memory 80 --nodes 4")


def test_an_interpreter_without_vllm_is_refused_before_the_first_rollout(case: Case):
    """This environment has no vLLM."""
    case.data()
    refused(case.train("--engine.name", "vllm"), "has no vLLM", "mugrpo vllm-env")
    assert case.loads == []


@pytest.mark.long
def test_a_reward_changed_by_force_does_not_mix_with_the_old_one(case: Case):
    options = (*judge(case, all_get(0.25)), "--rollouts.shard_rollouts", 8)
    options = (*options, "--rewards.truncated", "scored")
    case.starts(*options, shards=3)
    ended = mugrpo("score", *case.words(*options), at="score shard without entry", nth=2)
    assert ended.status == -signal.SIGKILL
    judge(case, all_get(0.75))
    refused(case.command("score", *case.words(*options)), "a reward function's file changed")
    ended = case.command("score", *case.words(*options, "--force"))
    assert ended.status == 0
    scores = ShardSet(case.run_dir / "stages/000/scores", "scores")
    sums = [entry["reward_sum"] for entry in scores.entries()]
    assert sums == [6.0, 6.0, 6.0]


@pytest.mark.long
def test_a_judge_that_fails_in_a_later_evaluation_leaves_the_shards(case: Case):
    whole = case.folder / "whole"
    whole.touch()
    reward = judge(case, unless(whole, "ValueError('out of order')"), "import os")
    options = (*reward, "--evaluation.every", 3)
    ended = mugrpo("train", *case.words(*options), at="checkpoint", nth=1)
    assert ended.status == -signal.SIGKILL
    made = shards(case.run_dir)
    whole.unlink()
    ended = case.command("train", *case.words(*options))
    stopped(ended, "could not be judged", "out of order", "rollouts are kept")
    assert shards(case.run_dir) == made
    assert [p.name for p in (case.run_dir / "evaluations").iterdir()] == ["update-000000"]
    whole.touch()
    assert case.command(*resume_words(ended)).status == LEARNED_NOTHING
    assert {name: shards(case.run_dir)[name] for name in made} == made
    made = [line for line in read_metrics(case.run_dir) if line["kind"] == "evaluation"]
    assert [line["update"] for line in made] == [0, 3]


def test_a_reward_that_is_none_for_all_responses_stops_the_run_before_an_update(case: Case):
    ended = case.train(*judge(case, all_get(None)), "--rewards.truncated", "scored")
    stopped(ended, "3 of a shard's 24 responses", "skipped: no reward is a number")
    assert "got no reward (skipped)" in ended.out  # told before the first rollout, too
    assert state(case.run_dir).rollouts == (1, 0) and read_metrics(case.run_dir) == []


def test_a_run_with_equal_rewards_ends_with_status_4(case: Case):
    ended = case.train(*judge(case, all_get(0.0)), "--schedule.stages", 1)
    assert ended.status == LEARNED_NOTHING == 4, ended
    assert "nothing was learned: none of the 3 updates had a gradient" in ended.err
    updates = [line for line in read_metrics(case.run_dir) if line["kind"] == "update"]
    assert {line["grad_norm"] for line in updates} == {0}
