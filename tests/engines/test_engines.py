import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, BloomConfig, FalconConfig, MptConfig

from mugrpo.config.run import ModelOptions
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Request
from mugrpo.model.policy import Policy, load_policy
from tests import builders
from tests.builders import PROMPTS, chain_tokenizer, encoded, generated, plain_logprobs, tiny_policy
from tests.cases import table

EOS = 1
LIMIT = 42  # tokens; with these seeds some responses of every model end before it, some do not


@pytest.fixture(params=["continuous", "hf"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with both engines."""
    monkeypatch.setattr(builders, "ENGINE", request.param)


def requests_of(policy, count: int) -> list[Request]:
    """Return `count` requests that repeat PROMPTS in order, each with its own seed."""
    return [Request(encoded(policy, PROMPTS[i % len(PROMPTS)]), i) for i in range(count)]


@table("temperature", [0.7, 1.0])
def test_logprobs_are_the_plain_models_over_all_logits(any_policy, temperature):
    requests = requests_of(any_policy, 12)
    assert len({len(r.prompt_ids) for r in requests}) > 3  # so the batch is padded
    completions = generated(any_policy, requests, batch_size=12, temperature=temperature)
    for request, completion in zip(requests, completions, strict=True):
        expected = plain_logprobs(any_policy, request.prompt_ids, completion.ids, temperature)
        np.testing.assert_allclose(completion.logprobs, expected.detach(), atol=5e-5)


ALIBI = {
    "bloom": BloomConfig(vocab_size=24, hidden_size=32, n_layer=2, n_head=4, eos_token_id=1),
    "mpt": MptConfig(vocab_size=24, d_model=32, n_layers=2, n_heads=4, eos_token_id=1),
    "falcon": FalconConfig(
        vocab_size=24, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True
    ),
}


@table("form", list(ALIBI))
def test_hf_decodes_models_whose_attention_has_a_bias_per_key(form, monkeypatch):
    monkeypatch.setattr(builders, "ENGINE", "hf")
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(ALIBI[form])
    policy = Policy(model, chain_tokenizer(), ModelOptions())
    requests = requests_of(policy, 12)
    for request, completion in zip(requests, generated(policy, requests), strict=True):
        expected = plain_logprobs(policy, request.prompt_ids, completion.ids, 1.0)
        np.testing.assert_allclose(completion.logprobs, expected.detach(), atol=5e-5)


def test_with_top_p_tokens_are_of_the_nucleus_and_logprobs_those_under_it(any_policy):
    """transformers' nucleus: a token outside would have the logprob -inf."""
    requests, sampling = requests_of(any_policy, 12), {"temperature": 0.9, "top_p": 0.6}
    completions = generated(any_policy, requests, batch_size=5, **sampling)
    raised = 0
    for request, completion in zip(requests, completions, strict=True):
        expected = plain_logprobs(any_policy, request.prompt_ids, completion.ids, **sampling)
        np.testing.assert_allclose(completion.logprobs, expected.detach(), atol=5e-5)
        whole = plain_logprobs(any_policy, request.prompt_ids, completion.ids, 0.9)
        raised += int((completion.logprobs > whole.detach().numpy() + 0.1).sum())
    assert raised > 0  # the nucleus left something out
    whole = generated(any_policy, requests, batch_size=5, temperature=0.9)
    assert [c.ids.tolist() for c in whole] != [c.ids.tolist() for c in completions]


def test_a_response_does_not_depend_on_the_batch_it_is_in(any_policy):
    requests = requests_of(any_policy, 8)
    alone = generated(any_policy, requests, batch_size=1)
    order = np.random.default_rng(0).permutation(8)  # other mates, other padding
    mixed = generated(any_policy, [requests[i] for i in order], batch_size=3)
    for place, i in enumerate(order):
        np.testing.assert_array_equal(mixed[place].ids, alone[i].ids)
        np.testing.assert_allclose(mixed[place].logprobs, alone[i].logprobs, atol=1e-4)


def test_a_response_ends_at_its_first_stop_id_and_is_truncated_without_one(any_policy):
    requests = requests_of(any_policy, 40)
    completions = generated(any_policy, requests, max_new_tokens=LIMIT)
    stopped = [c for c in completions if c.finish_reason is FinishReason.STOP]
    truncated = [c for c in completions if c.finish_reason is FinishReason.LENGTH]
    assert stopped and truncated  # the case holds both
    for completion in stopped:
        assert completion.ids.tolist().index(EOS) == len(completion.ids) - 1 < LIMIT
    for completion in truncated:
        assert EOS not in completion.ids and len(completion.ids) == LIMIT
    assert all(len(c.logprobs) == len(c.ids) for c in completions)


def test_first_tokens_are_drawn_from_the_models_next_token_distribution(any_policy):
    draws = 1500
    prompt_ids = encoded(any_policy, "3+2-1+3-2+1+1+2=3+2=")  # where the embedded model is unsure
    requests = [Request(prompt_ids, seed) for seed in range(draws)]
    completions = generated(any_policy, requests, batch_size=500, temperature=0.7, max_new_tokens=1)
    with torch.no_grad():
        logits = any_policy.model(input_ids=torch.tensor(prompt_ids.astype(np.int64))[None]).logits
    observed = np.bincount([c.ids[0] for c in completions], minlength=logits.shape[-1])

    def p_value(temperature: float) -> float:
        expected = torch.softmax(logits[0, -1].double() / temperature, -1).numpy() * draws
        rare = expected < 5  # too few for the test: into the most likely token's cell
        rare[expected.argmax()] = True
        cells = [[*x[~rare], x[rare].sum()] for x in (observed, expected)]
        return float(chisquare(*cells).pvalue)

    assert p_value(0.7) > 1e-3
    assert p_value(0.85) < 1e-3  # the test can tell a slightly higher temperature apart


@table("form", ["chain", "gpt2"])
def test_gradient_checkpointing_and_dropout_change_no_response(form):
    # Checkpointing keeps the model in training mode; GPT-2's config asks for dropout of 0.5.
    options = ModelOptions(gradient_checkpointing=True)
    if form == "chain":
        plain, checkpointed = load_policy(ModelOptions()), load_policy(options)
    else:
        plain, checkpointed = tiny_policy(form), tiny_policy(form, gradient_checkpointing=True)
    assert checkpointed.model.training
    requests = requests_of(plain, 8)
    for a, b in zip(generated(plain, requests), generated(checkpointed, requests), strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)
        np.testing.assert_array_equal(a.logprobs, b.logprobs)
