"""Every row's command runs at a tiny size, and the peers do the same work as we do."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys

import pytest
import torch

import generation_chain
import generation_smollm2
import optimization_floor
from generation import plainly_generated
from mugrpo.config.load import build_config
from mugrpo.config.run import ModelOptions, PromptOptions
from mugrpo.config.tasks import ChainOptions
from mugrpo.disk.records import Problem
from mugrpo.model.policy import Policy
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.tasks.chain import Chain
from tests.builders import PROMPTS
from tests.cases import some
from workloads import other_copy, requests, sampled, word_problems


def test_word_problems_are_all_different_and_the_same_at_every_call():
    problems = word_problems(64)
    assert problems == word_problems(64)
    assert len({p.prompt for p in problems}) == len({p.id for p in problems}) == 64


def test_both_sides_of_generation_count_the_same_tokens(embedded_policy):
    # With a head a thousand times as large, sampling always takes the likeliest token.
    model = other_copy(embedded_policy)
    with torch.no_grad():
        model.lm_head.weight *= 1000
    policy = Policy(model, embedded_policy.tokenizer, ModelOptions())
    encode = PromptEncoder(policy.tokenizer, policy.vocab_size, PromptOptions())
    prompts = [*PROMPTS, *(p.prompt for p in Chain(ChainOptions()).train_problems()[:6])]
    asked = requests(encode, [Problem(prompt, prompt, "") for prompt in prompts], 2)
    config = build_config({"rollouts": {"max_new_tokens": 44}}, "test")
    ours, _ = sampled(policy, config, asked)
    theirs, slots = plainly_generated(model, policy, asked, 44, 5)
    assert [len(c.ids) for c in ours] == theirs
    assert len(set(theirs)) > 1 and slots > sum(theirs)


@pytest.mark.parametrize(
    "command", some(1, [generation_chain, generation_smollm2, optimization_floor])
)
def test_rows_in_this_process(command, tmp_path, capsys):
    given = ["--tiny", "--repetitions", "2", "--output", str(tmp_path / "row.json")]
    document = command.main(given)
    assert document == json.loads((tmp_path / "row.json").read_text())
    assert document["tiny"]
    assert all(len(ratio["values"]) == 2 for ratio in document["ratios"])


@pytest.mark.slow
def test_an_update_is_trls_update(tmp_path, capsys):
    import update_smollm2

    output = str(tmp_path / "row.json")
    document = update_smollm2.main(["--tiny", "--repetitions", "1", "--output", output])
    assert document["details"]["gradient_difference"] < 1e-4


@pytest.mark.slow
def test_trls_batches_hold_the_rollouts(embedded_policy, experience):
    from trl_peer import trl_batches
    from workloads import Update

    config = build_config({"schedule": {"group_size": 4}}, "test")
    parts = trl_batches(Update(experience, [], []), config, embedded_policy.pad_id, 8)
    assert len(parts) == 2
    for row, rollout in enumerate(experience.rollouts):
        part, at = parts[row // 8], row % 8
        for kind, ids in (("prompt", rollout.prompt_ids), ("completion", rollout.response_ids)):
            kept = part[f"{kind}_mask"][at].bool()
            assert part[f"{kind}_ids"][at][kept].tolist() == ids.tolist()
    # One of four right: (1 - 1/4) / (1/2 + 1e-4), the unbiased deviation being 1/2.
    assert parts[0]["advantages"][0].item() == pytest.approx(0.75 / 0.5001)
    assert not parts[1]["advantages"][:4].any()


@pytest.mark.slow
def test_trls_reward_is_the_tasks_and_0_where_truncated():
    from trl_peer import reward_of

    task = Chain(ChainOptions())
    reward = reward_of(task, [Problem("p", "3+2-1=", "4")], [1])
    texts = ["3+2=5,5-1=4", "3+2=5,5-1=4", "3+2=5,5-1=3"]
    assert reward(texts, [[7, 1], [7, 7], [7, 1]], ["p"] * 3) == [1.0, 0.0, 0.0]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["run_same_schedule", "run_to_accuracy", "schedules", "stage_length", "overlap"]
)
def test_rows_of_whole_runs(name, tmp_path, capfd):
    command = importlib.import_module(name)
    document = command.main(["--tiny", "--output", str(tmp_path / "row.json")])
    for side in document["sides"].values():
        assert all(seconds > 0 for seconds in side["seconds"]["values"])


@pytest.mark.long
def test_the_cost_of_every_objective_is_measured(tmp_path, capsys, monkeypatch):
    import objective_cost

    sizes = ["--tokens", "600", "--pair-tokens", "300", "--repetitions", "1", "--pairs", "1"]
    words = ["objective_cost.py", *sizes, "--json", str(tmp_path / "cost.json")]
    monkeypatch.setattr(sys, "argv", words)
    with contextlib.suppress(SystemExit):  # at this size a part may well cost more than its limit
        objective_cost.main()
    rows = json.loads((tmp_path / "cost.json").read_text())["rows"]
    assert [row["variant"] for row in rows] == list(objective_cost.VARIANTS)
    assert all(row["own_ms"] > 0 and row["bytes_a_token"] > 0 for row in rows)


@pytest.mark.long
def test_the_memory_of_two_stages_is_measured(capfd, monkeypatch):
    import stage_memory

    monkeypatch.setattr(sys, "argv", ["stage_memory.py", "--small", "1", "--large", "2"])
    stage_memory.main()
    measured = json.loads(capfd.readouterr().out)
    assert 100 < measured["peak_mib_1_updates"] < 4000
    assert measured["ratio"] == pytest.approx(
        measured["peak_mib_2_updates"] / measured["peak_mib_1_updates"], abs=1e-3
    )
