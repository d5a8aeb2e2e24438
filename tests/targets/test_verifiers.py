"""Runs in environments of the real verifiers: `make test-verifiers`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mugrpo.config.base import WorkerOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.shards import ShardSet, read_rollouts
from mugrpo.extensions.turns import EnvironmentOptions
from mugrpo.extensions.turns.base import Reply
from mugrpo.extensions.turns.verifiers.pool import VerifiersEnvironments
from tests.builders import chain_tokenizer
from tests.extensions.turns.verifiers.test_verifiers_environments import reply

pytestmark = pytest.mark.verifiers

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-verifiers" / "bin" / "python"
TASKSETS = Path(__file__).with_name("tasksets")
ONE = WorkerOptions(count=1)
SAY = {"role": "assistant", "content": "7"}


@pytest.fixture(scope="module", autouse=True)
def _tasksets() -> Iterator[None]:
    if not PYTHON.exists():
        pytest.skip("needs .venv-verifiers (make verifiers-env)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TASKSETS))
        yield


def made(**kwargs: Any) -> VerifiersEnvironments:
    options = {"name": "verifiers:sums", "python": str(PYTHON), "kwargs": kwargs}
    return VerifiersEnvironments(EnvironmentOptions(**options), ONE, own_reward=True)


@pytest.fixture(scope="module")
def environments() -> Iterator[VerifiersEnvironments]:
    found = made(taskset={"tool": True})
    yield found
    found.close()


def test_an_episode_in_turns_with_a_call_of_a_tool(environments):
    (tool,) = environments.tools
    assert tool["function"]["name"] == "sums_add"
    first, second = environments.problems(2)
    assert first["prompt"] == [{"role": "user", "content": "2+3="}]
    assert (first["task"]["rounds"], second["task"]["rounds"]) == (1, 2)
    environments.begin(3, 0, first)
    assert reply(environments, 3) == Reply(messages=[])
    call = {"type": "function", "function": {"name": "sums_add", "arguments": {"a": 2, "b": 3}}}
    environments.step(3, {"role": "assistant", "content": "", "tool_calls": [call]})
    (answer,) = reply(environments, 3).messages
    assert (answer["role"], answer["content"]) == ("tool", "5")
    environments.step(3, SAY)
    assert reply(environments, 3) == Reply(messages=[{"role": "user", "content": "1+1="}])
    environments.step(3, SAY)
    done = reply(environments, 3)  # two of three messages have a digit, each worth a half
    assert (done.done, done.reward, done.failure) == (True, 1.0, None)
    assert done.logged == {"digits": 1.0, "spoken": 3.0}


def test_a_model_without_room_is_graded_for_what_it_said(environments):
    (problem,) = environments.problems(1)
    environments.begin(0, 0, problem)
    reply(environments, 0)
    environments.step(0, SAY)
    reply(environments, 0)
    environments.end(0)
    done = reply(environments, 0)
    assert (done.done, done.reward, done.failure) == (True, 0.5, None)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("reward", "TaskError: task SumsTask scoring: ValueError: nobody knows"),
        ("another", "a second agent asks for the policy"),
    ],
)
def test_what_goes_wrong_is_a_sentence(environments, wrong: str, reason: str):
    (problem,) = environments.problems(1)
    environments.begin(0, 0, {**problem, "task": {**problem["task"], "wrong": wrong}})
    while not (found := reply(environments, 0)).done:
        environments.step(0, SAY)
    assert reason in str(found.failure)


def test_what_cannot_be_loaded_is_refused():
    with pytest.raises(UsageError, match="taskset"):
        _ = made(taskset={"first": "two"}).tools
    unknown = EnvironmentOptions(name="verifiers:no_such_thing", python=str(PYTHON))
    with pytest.raises(UsageError, match="no_such_thing"):
        _ = VerifiersEnvironments(unknown, ONE).tools


CONFIG = f"""
prompt = {{ form = "chat", chat_template = "plain.jinja" }}
environment = {{ name = "verifiers:sums", python = "{PYTHON}" }}
workers = {{ count = 1 }}
rollouts = {{ max_new_tokens = 32 }}
evaluation = {{ every = 0 }}

[task]
name = "dataset"
data = "sums.jsonl"
id_column = "id"
rewards = "environment"
eval_problems = 4

[schedule]
stages = 1
batches_per_stage = 2
growth = 1
problems_per_update = 4
group_size = 4
"""


def test_a_run_trains_on_the_tokens_of_its_engine(tmp_path):
    """The first turn ends with the stop id, then "1+1=" follows, which is masked."""
    (tmp_path / "sums.toml").write_text(CONFIG)
    (tmp_path / "plain.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    for words in (["problems", "sums.toml", "--count", "64"], ["train", "sums.toml"]):
        command = [sys.executable, "-m", "mugrpo", *words]
        paths = os.pathsep.join([str(ROOT / "src"), str(TASKSETS)])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode in (0, 4), done.stderr
    shards = ShardSet(tmp_path / "runs" / "sums" / "stages" / "000" / "rollouts", "rollouts")
    rollouts = [one for shard in shards.numbers() for one in read_rollouts(shards, shard)]
    said = chain_tokenizer()("1+1=")["input_ids"]
    stop = chain_tokenizer().eos_token_id
    several = [one for one in rollouts if one.turns is not None and len(one.turns) > 1]
    assert len(rollouts) == 32
    assert several
    for one in several:
        first, second = one.turns[:2]
        assert first == 0
        assert one.response_ids[second - len(said) : second].tolist() == said
        assert not one.loss_mask[second - len(said) : second].any()
        assert np.all(one.behavior_logprobs[second - len(said) : second] == 0)
        assert one.response_ids[second - len(said) - 1] == stop
