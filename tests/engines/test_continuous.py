"""What continuous batching adds to what every engine promises, and requests that come later."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Mamba2Config

from mugrpo.config.engines import ContinuousOptions, HFOptions
from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason
from mugrpo.engines import continuous, make_engine, waiting
from mugrpo.engines.base import Completion, Request
from mugrpo.engines.cache import BLOCK, Reordered, SlotCache
from mugrpo.engines.continuous import ContinuousEngine
from mugrpo.engines.hf import HFEngine
from mugrpo.engines.process import EngineHost, RemoteEngine
from mugrpo.model.policy import Policy, load_policy
from mugrpo.processes.messages import from_json
from tests.builders import (
    PROMPTS,
    chain_tokenizer,
    collected,
    encoded,
    engine_of,
    generated,
    plain_logprobs,
    tiny_policy,
)
from tests.cases import cross, table
from tests.model.test_probe import SIZES

LONG = 2 * BLOCK + 5  # response tokens: three blocks


def groups_of(policy: Policy, size: int) -> list[Request]:
    """Return `size` requests for each of PROMPTS, side by side."""
    prompts = [encoded(policy, prompt) for prompt in PROMPTS for _ in range(size)]
    return [Request(ids, seed) for seed, ids in enumerate(prompts)]


@cross(form=["gemma3", "gpt2", "mistral", "qwen3", "llama"], size_slots=[(5, 7), (1, 4), (5, 64)])
def test_tokens_are_the_plain_engines_and_logprobs_the_plain_models(form, size_slots):
    """Groups that do not fit the slots, groups of one, and all requests at once. Windows of five
    tokens (gemma3, mistral) end within a block, at its edge and in the prompt."""
    policy, (size, slots) = tiny_policy(form), size_slots
    requests = groups_of(policy, size)
    completions = generated(policy, requests, batch_size=slots, max_new_tokens=LONG)
    plain = HFEngine(policy, HFOptions(slots=64))
    (batch,) = plain.generate(requests, temperature=1.0, max_new_tokens=LONG)
    assert size == 1 or max(len(c.ids) for c in completions) > BLOCK
    for request, completion, (_, expected) in zip(
        requests, completions, batch.completions, strict=True
    ):
        np.testing.assert_array_equal(completion.ids, expected.ids)
        logprobs = plain_logprobs(policy, request.prompt_ids, completion.ids).detach()
        np.testing.assert_allclose(completion.logprobs, logprobs, atol=5e-5)


def test_a_prompt_goes_through_the_model_once_for_all_its_responses(monkeypatch):
    policy = tiny_policy("llama")
    seen: list[bytes] = []
    prefill = waiting.prefill

    def counted(policy, prompts):
        seen.extend(prompt.tobytes() for prompt in prompts)
        return prefill(policy, prompts)

    monkeypatch.setattr(waiting, "prefill", counted)
    generated(policy, groups_of(policy, 6), batch_size=4, max_new_tokens=8)
    assert sorted(seen) == sorted({encoded(policy, prompt).tobytes() for prompt in PROMPTS})


def test_weights_are_reordered_once_for_all_calls_until_they_change(monkeypatch):
    policy = tiny_policy("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(slots=4))
    requests, how = groups_of(policy, 2), {"temperature": 1.0, "max_new_tokens": 8}
    made: list[Reordered] = []
    monkeypatch.setattr(
        continuous, "Reordered", lambda *of: made.append(Reordered(*of)) or made[-1]
    )
    first, again = (collected(engine.generate(requests, **how)) for _ in range(2))
    assert len(made) == 1
    assert [c.logprobs.tobytes() for c in again] == [c.logprobs.tobytes() for c in first]
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight *= 1.5
    policy.weights_changed()
    for request, completion in zip(
        requests, collected(engine.generate(requests, **how)), strict=True
    ):
        logprobs = plain_logprobs(policy, request.prompt_ids, completion.ids).detach()
        np.testing.assert_allclose(completion.logprobs, logprobs, atol=5e-5)
    assert len(made) == 2
    engine.sleep()
    assert engine._copies is None


def test_what_was_computed_is_counted():
    """Three responses of four tokens in two slots, and two prompts. Each admission draws a first
    token; two slots then decode 3 steps for the first two responses, and 3 more for the third,
    beside which one slot is empty: 3 + 2 x (3 + 3) tokens."""
    policy = tiny_policy("llama")
    policy.stop_ids = []
    one, other = encoded(policy, PROMPTS[0]), encoded(policy, PROMPTS[1])
    engine = ContinuousEngine(policy, ContinuousOptions(slots=2))
    requests = [Request(one, 0), Request(one, 1), Request(other, 2)]
    decoded = list(engine.generate(requests, temperature=1.0, max_new_tokens=4))
    assert sum(d.slots for d in decoded) == 3 + 2 * 6
    assert [i for d in decoded for i, _ in d.completions] == [0, 1, 2]


def test_bf16_logprobs_are_as_close_to_the_exact_ones_as_the_plain_engines():
    policy = load_policy(ModelOptions(precision="bf16"))
    requests = groups_of(policy, 3)
    plain = HFEngine(policy, HFOptions(slots=64))
    (batch,) = plain.generate(requests, temperature=1.0, max_new_tokens=48)

    def error(completions) -> float:
        gaps = [
            completion.logprobs
            - plain_logprobs(policy, request.prompt_ids, completion.ids).detach().numpy()
            for request, completion in zip(requests, completions, strict=True)
        ]
        return float(np.abs(np.concatenate(gaps)).mean())

    ours, theirs = error(generated(policy, requests)), error([c for _, c in batch.completions])
    assert 0 < ours < 1.25 * theirs < 0.05


def test_a_model_that_asks_for_another_attention_is_refused():
    torch.manual_seed(0)
    config = Gemma2Config(**SIZES, attn_logit_softcapping=50.0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    policy = Policy(model, chain_tokenizer(), ModelOptions())
    with pytest.raises(UsageError, match=r"softcap is not supported.*--engine\.name hf"):
        make_engine(policy, ContinuousOptions(slots=8))


@table(
    ("engine", "sentence"),
    [
        (ContinuousOptions(slots=8), r"neither engine .* \(continuous: list index out of range\)"),
        (HFOptions(slots=8), r"neither engine of mugrpo can .* \(hf: its logits differ by \d+%"),
    ],
)
def test_a_model_that_no_engine_can_decode_is_refused(engine, sentence):
    """transformers' static cache keeps no state of Mamba2 for rows of different lengths."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 24, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
    ids = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    config = Mamba2Config(**sizes, **ids, num_heads=8, head_dim=8, n_groups=2)
    policy = Policy(AutoModelForCausalLM.from_config(config), chain_tokenizer(), ModelOptions())
    with pytest.raises(UsageError, match=sentence):
        make_engine(policy, engine)


HEADS, SIZE, QUERIES = 2, 4, 3


class Reference:
    """Attention over whole sequences, whose keys and values are kept separately."""

    def __init__(self) -> None:
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []  # [H, tokens, D] both, by slot

    def attend(self, query_AHQD, key_AHD, value_AHD, window):
        outputs = []
        for a, (keys, values) in enumerate(self.kept):
            keys = torch.cat([keys, key_AHD[a, :, None]], 1)
            values = torch.cat([values, value_AHD[a, :, None]], 1)
            self.kept[a] = keys, values
            seen = slice(None) if window is None else slice(-window, None)
            weights = torch.softmax(query_AHQD[a] @ keys[:, seen].transpose(1, 2), -1)
            outputs.append(weights @ values[:, seen])
        return torch.stack(outputs)


@table("split", [True, False])
@table("window", [None, 3, BLOCK + 2])
@table("seed", [0, 1])
def test_slots_attend_as_separate_sequences_do(window, seed, split):
    """Sequences that begin in groups, end at random and move, over several blocks."""
    random, slots, layers = np.random.default_rng(seed), 9, 2
    torch.manual_seed(seed)
    cache, references = SlotCache(slots, split=split), [Reference() for _ in range(layers)]
    response_lengths = np.zeros(0, np.int64)  # response tokens of the active slots
    for _ in range(4 * BLOCK):
        while len(response_lengths) < slots and random.random() < 0.5:
            count = int(random.integers(1, slots - len(response_lengths) + 1))
            length = int(random.integers(1, 12))
            prompt = [(torch.randn(HEADS, length, SIZE),) * 2 for _ in range(layers)]
            cache.begin(np.arange(len(response_lengths), len(response_lengths) + count), prompt)
            for reference, layer in zip(references, prompt, strict=True):
                reference.kept += [layer] * count
            response_lengths = np.append(response_lengths, np.zeros(count, np.int64))
        if not len(response_lengths):
            continue
        positions = cache.aim(response_lengths, torch.device("cpu"))
        lengths = [len(keys[0]) for keys, _ in references[0].kept]
        assert positions.tolist() == lengths  # a position is the number of tokens before
        for layer, reference in enumerate(references):
            query = torch.randn(len(response_lengths), HEADS, QUERIES, SIZE)
            key, value = torch.randn(2, len(response_lengths), HEADS, SIZE)
            expected = reference.attend(query, key, value, window)
            rows = (query.flatten(1, 2)[:, :, None], key, value)
            actual = cache.attend(layer, *rows, scale=1.0, window=window)
            torch.testing.assert_close(actual[:, 0], expected.flatten(1, 2), atol=1e-5, rtol=1e-5)
        response_lengths += 1
        ended = random.random(len(response_lengths)) < 0.02
        left = len(response_lengths) - int(ended.sum())
        gaps, movers = np.flatnonzero(ended[:left]), left + np.flatnonzero(~ended[left:])
        response_lengths[gaps] = response_lengths[movers]
        response_lengths = response_lengths[:left]
        for reference in references:
            for gap, mover in zip(gaps, movers, strict=True):
                reference.kept[gap] = reference.kept[mover]
            del reference.kept[left:]
        cache.compact(movers, gaps, left, int(response_lengths.max(initial=0)))
        assert len(cache.length_U) <= left  # prompts without a slot are dropped
    blocks, _, _, size, _ = cache.layers[0].responses[0].shape
    assert (blocks > 1, size > BLOCK) == (split, not split)  # several blocks, or one that grew


def test_keys_with_much_in_common_lose_no_precision_in_bf16():
    """What all keys have in common changes no softmax; whole numbers to 66 are exact in bf16. With
    scores of about 64 x 4 = 256, rounded to 1 or 2, attention would be that to other tokens."""
    torch.manual_seed(0)
    plain, common = SlotCache(2), SlotCache(2)
    keys = torch.randint(-2, 3, (HEADS, 9, SIZE)).bfloat16()
    values, query = torch.randn(HEADS, 9, SIZE).bfloat16(), torch.rand(2, HEADS * QUERIES, 1, SIZE)
    key, value = torch.randint(-2, 3, (2, HEADS, SIZE)).bfloat16(), torch.randn(2, HEADS, SIZE)
    outputs = []
    for cache, shift in ((plain, 0), (common, 64)):
        cache.begin(np.array([0, 1]), [(keys + shift, values)])
        cache.aim(np.array([0, 0]), torch.device("cpu"))
        rows = (query.bfloat16(), key + shift, value.bfloat16())
        outputs.append(cache.attend(0, *rows, scale=1.0, window=None))
    torch.testing.assert_close(outputs[1], outputs[0], atol=0.03, rtol=0)


LIMIT = 12


def requests_of(policy: Policy, count: int) -> list[Request]:
    return [
        Request(encoded(policy, PROMPTS[i % len(PROMPTS)]), 70 + i, 3 + i % 7) for i in range(count)
    ]


def taken(engine, requests, more: Iterable[Sequence[Request]] = ()) -> list[Completion]:
    steps = engine.generate(requests, temperature=1.0, max_new_tokens=LIMIT, more=more)
    return collected(steps)


def endless(form: str) -> Policy:
    """Return a policy whose responses end only at their limits."""
    policy = tiny_policy(form)
    policy.stop_ids = []
    return policy


@table("first", [0, 2, 9])
def test_requests_that_come_later_get_the_responses_that_they_would_get_at_once(first: int):
    """Nothing at first, then one or more at a time, with steps at which none comes."""
    policy = endless("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(slots=4))
    requests = requests_of(policy, 9)
    expected = taken(engine, requests)
    assert [len(c.ids) for c in expected] == [3 + i % 7 for i in range(9)]
    assert {c.finish_reason for c in expected} == {FinishReason.LENGTH}
    cuts = sorted({first, 3, 4, 9} - set(range(first)))
    parts = [requests[a:b] for a, b in pairwise(cuts)]
    spaced = [part for piece in parts for part in ((), piece, ())]
    completions = taken(engine, requests[:first], spaced)
    for ours, theirs in zip(completions, expected, strict=True):
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
        assert ours.finish_reason is theirs.finish_reason


def test_a_request_begins_beside_those_that_run_and_an_idle_engine_asks_again():
    """Two responses of four tokens; a third request comes after the first step, for two tokens. An
    admission draws a first token and the same step decodes a second. So the third ends in the step
    it begins in, two steps before the others. Then the engine is idle until a fourth comes."""
    policy = endless("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(slots=4))
    prompt = encoded(policy, PROMPTS[0])
    two = [Request(prompt, seed, 4) for seed in (0, 1)]
    third, fourth = [Request(prompt, 2, 2)], [Request(prompt, 3, 2)]
    more = [(), third, (), (), (), fourth]
    decoded = list(engine.generate(two, temperature=1.0, max_new_tokens=LIMIT, more=more))
    ends = [[index for index, _ in d.completions] for d in decoded]
    assert ends == [[], [2], [0, 1], [], [], [3], []]
    # 2 + 1 + 1 first tokens; two slots in the first step, then three, of which some are idle.
    assert [d.slots for d in decoded] == [2 + 2, 1 + 3, 3, 0, 0, 1 + 3, 0]


@table("name", ["hf", "continuous"])
def test_a_request_may_have_a_lower_limit_than_its_call(name: str):
    """Only the tokens after the limit are missing, and it is the reason for the end."""
    policy = tiny_policy("llama")
    policy.stop_ids = list(range(0, policy.vocab_size, 6))
    prompt = encoded(policy, PROMPTS[0])
    engine = engine_of(name, policy, slots=8)
    whole = taken(engine, [Request(prompt, seed) for seed in range(16)])
    cut = taken(engine, [Request(prompt, seed, 4) for seed in range(16)])
    assert {len(c.ids) <= 4 for c in whole} == {True, False}
    for ours, theirs in zip(cut, whole, strict=True):
        np.testing.assert_array_equal(ours.ids, theirs.ids[:4])
        longer = len(theirs.ids) > 4
        assert ours.finish_reason is (FinishReason.LENGTH if longer else theirs.finish_reason)


class Worker:
    """A started process that answers each request with its seed, one request per message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, object]] = []
        self.tasks: list[list[int]] = []  # the indices of each

    def send(self, text: str) -> None:
        message = from_json(text)
        if "load" in message:
            self.messages.append({"loaded": True})
            return
        task = message["generate"]
        self.tasks.append([index for index, *_ in task["requests"]])
        for index, _, seed, limit in task["requests"]:
            ids = np.full(limit or task["max_new_tokens"], seed, np.int32)
            zeros = np.zeros(len(ids), np.float32).tobytes()
            entry = {"index": index, "ids": ids.tobytes(), "logprobs": zeros, "reason": "length"}
            self.messages.append({"completions": [entry], "slots": len(ids)})
        self.messages.append({"end": True})

    def hear(self, patience: float = 0.0):
        return self.messages.pop(0) if self.messages else None

    def end(self) -> str:
        return ""


def test_a_process_gets_requests_while_it_works_and_after_it_has_been_idle():
    """Two requests, one while they run, none for a while, and one for the idle process."""
    worker = Worker()
    host = EngineHost(None, {}, {}, Path("log"), 100, "stay", slots=2)
    engine = RemoteEngine(host, lambda: worker, pytest.fail, lambda: None)
    prompt = np.array([1, 2], np.int32)
    requests = [Request(prompt, seed, seed) for seed in (3, 4, 5, 6)]
    more = [[requests[2]], (), (), (), (), (), [requests[3]]]
    completions = taken(engine, requests[:2], more)
    assert [c.ids.tolist() for c in completions] == [[n] * n for n in (3, 4, 5, 6)]
    assert worker.tasks == [[0, 1], [2], [3]]
