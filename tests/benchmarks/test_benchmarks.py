"""The commands run at a tiny size, and the peers do the same work as we do."""

import json

import pytest
import torch

import generation
import optimization_floor
import parts
import whole_run
from generation import plainly_generated
from mugrpo.config.load import build_config
from mugrpo.config.run import ModelOptions, PromptOptions
from mugrpo.config.tasks import ChainOptions
from mugrpo.disk.records import Problem
from mugrpo.model.policy import Policy
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.tasks.embedded import Chain
from tests.builders import PROMPTS
from workloads import other_copy, requests, sampled, word_problems


def test_word_problems_are_all_different_and_the_same_at_every_call():
    problems = word_problems(64)
    assert problems == word_problems(64)
    assert len({p.prompt for p in problems}) == len({p.id for p in problems}) == 64


def test_what_a_shard_costs_a_folder_does_not_grow_with_the_parts():
    few, many = parts.main(["--shards", "32", "--parts", "2", "32"])
    assert all(abs(many[name] - few[name]) <= 2 for name in parts.OPERATIONS)  # of each part, once
    # file and entry, of rollouts and of scores: renamed, each and its folder on the disk
    assert (few["rename"], few["fsync"], few["list"], few["remove"]) == (4, 8, 0, 2)


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


@pytest.mark.long
@pytest.mark.parametrize("command", [[generation, "chain"], [optimization_floor]])
def test_a_row_is_stored_with_every_repetition(command, tmp_path, capsys):
    module, *words = command
    given = [*words, "--tiny", "--repetitions", "2", "--output", str(tmp_path / "row.json")]
    document = module.main(given)
    assert document == json.loads((tmp_path / "row.json").read_text())
    assert document["tiny"]
    assert all(len(ratio["values"]) == 2 for ratio in document["ratios"])


@pytest.mark.long
def test_an_update_is_trls_update(tmp_path, capsys):
    import update_smollm2

    output = str(tmp_path / "row.json")
    document = update_smollm2.main(["--tiny", "--repetitions", "1", "--output", output])
    assert document["details"]["gradient_difference"] < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("question", ["schedule", "accuracy"])
def test_rows_of_whole_runs(question, tmp_path, capfd):
    document = whole_run.main([question, "--tiny", "--output", str(tmp_path / "row.json")])
    for side in document["sides"].values():
        assert all(seconds > 0 for seconds in side["seconds"]["values"])
