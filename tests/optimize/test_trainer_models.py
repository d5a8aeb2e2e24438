import torch

from mugrpo.config.run import ModelOptions
from mugrpo.engines.base import Request
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.experience import Experience
from tests.builders import PROMPTS, encoded, generated, rollout, stale, tiny_policy, verdict
from tests.cases import table
from tests.updates import assert_same_gradients, config_of, step


def random_experience(policy: Policy) -> Experience:
    """Return two groups of two responses sampled from `policy`, made stale."""
    requests = [Request(encoded(policy, PROMPTS[i // 2]), i) for i in range(4)]
    completions = generated(policy, requests, max_new_tokens=20)
    rollouts = [
        rollout(f"p{i // 2}", i % 2, r.prompt_ids, c)
        for i, (r, c) in enumerate(zip(requests, completions, strict=True))
    ]
    return stale(Experience(rollouts, [verdict(reward) for reward in (1, 0, 0, 1)]))


@table("form", ["llama", "qwen2", "gpt2"])
def test_gradient_checkpointing_changes_no_gradient(form):
    # The configs ask for dropout of 0.5, and checkpointing keeps the model in training mode.
    case = random_experience(tiny_policy(form))
    _, plain = step(case, config_of(), tiny_policy(form))
    checkpointed = tiny_policy(form, gradient_checkpointing=True)
    assert checkpointed.model.training
    _, again = step(case, config_of(), checkpointed)
    assert_same_gradients(again, plain, rtol=1e-6)


def test_a_tokenizer_without_a_padding_token_changes_nothing(experience):
    experience = stale(experience)
    with_pad, without = load_policy(ModelOptions()), load_policy(ModelOptions())
    without.tokenizer.pad_token = None
    without = Policy(without.model, without.tokenizer, ModelOptions())
    assert (with_pad.pad_id, without.pad_id) == (0, 1)  # <pad>, <eos>
    # rows that share prompts are not padded
    expected, gradients = step(experience, config_of(), with_pad, share=False)
    metrics, others = step(experience, config_of(), without, share=False)
    assert expected["padding_share"] > 0.2  # there is padding that could matter
    assert metrics["loss"] == expected["loss"]
    assert all(torch.equal(others[name], gradients[name]) for name in gradients)
