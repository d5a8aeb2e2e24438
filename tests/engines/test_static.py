"""Steps of static shapes give the tokens of eager ones. On a CPU they run without graphs."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Qwen2Config

from mugrpo.config.engines import ContinuousOptions
from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import RunStopped
from mugrpo.engines import cache, static, static_fault
from mugrpo.engines.base import Completion, Request
from mugrpo.engines.continuous import ContinuousEngine
from mugrpo.engines.static import EVERY, StaticSlots, bucket_of
from mugrpo.model.policy import Policy
from tests.builders import PROMPTS, chain_tokenizer, collected, encoded, tiny_config, tiny_policy
from tests.cases import cross, table
from tests.model.test_probe import SIZES

LIMIT = 40


def requests_of(policy: Policy, groups: int, size: int = 8) -> list[Request]:
    """Return groups of requests whose prompts have 3 to 39 tokens; every fifth ends at 7 tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 40, groups)
    prompts = [rng.integers(2, policy.vocab_size, n).astype(np.int32) for n in lengths]
    return [
        Request(prompts[i // size], 1000 + i, None if i % 5 else 7) for i in range(groups * size)
    ]


def both(
    policy: Policy, requests: list[Request], slots: int, later: int = 0
) -> tuple[list[Completion], list[Completion]]:
    """Return what eager and static steps give; with the latter, requests from `later` on come
    when there is room."""
    options = ContinuousOptions(slots=slots)
    how = {"temperature": 0.9, "max_new_tokens": LIMIT}
    eager = collected(ContinuousEngine(policy, options).generate(requests, **how))
    engine = ContinuousEngine(policy, options, static=True)
    first, more = (requests[:later], [(), requests[later:]]) if later else (requests, [])
    return eager, collected(engine.generate(first, **how, more=more))


def assert_same(ours: list[Completion], theirs: list[Completion]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
        assert one.finish_reason is other.finish_reason


def endless(form: str) -> Policy:
    policy = tiny_policy(form)
    policy.stop_ids = []
    return policy


def soft_capped() -> Policy:
    """Return a Gemma 2 without soft-capped attention; its logits are soft-capped."""
    torch.manual_seed(7)
    config = Gemma2Config(**SIZES, attn_logit_softcapping=None, final_logit_softcapping=3.0)
    return Policy(AutoModelForCausalLM.from_config(config), chain_tokenizer(), ModelOptions())


def policy_of(form: str) -> Policy:
    """Return a tiny policy with many stop ids, so that responses end at any length."""
    policy = soft_capped() if form == "gemma2" else tiny_policy(form)
    policy.stop_ids = [1, policy.vocab_size - 1]
    return policy


@cross(
    form=["qwen2", "llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt2"],
    slots_later=[(48, 0), (13, 16), (5, 8), (1, 0)],
)
def test_tokens_reasons_and_logprobs_are_those_of_eager_steps(form, slots_later, monkeypatch):
    """Groups, own limits, later arrivals, a window of five tokens, several widths; room grows when
    longer prompts come."""
    monkeypatch.setattr(static, "_ROOM", 8)
    policy, (slots, later) = policy_of(form), slots_later
    requests = requests_of(policy, 6 if slots > 1 else 1)
    requests[:8] = [Request(r.prompt_ids[:3], r.seed) for r in requests[:8]]  # short ones first
    eager, ours = both(policy, requests, slots, later)
    assert_same(ours, eager)
    lengths = {len(c.ids) for c in ours}
    assert slots == 1 or (min(lengths) < 7 and max(lengths) == LIMIT)


def trainers_gap(policy: Policy, requests: list[Request], completions: list[Completion]) -> float:
    """Return the mean distance of logprobs from the trainer's own pass, in the same precision."""
    gaps = []
    with torch.no_grad():
        for request, completion in zip(requests, completions, strict=True):
            ids = torch.tensor(np.concatenate([request.prompt_ids, completion.ids]))[None]
            logits = policy.working()(input_ids=ids, use_cache=False).logits[0].float() / 0.9
            start, rows = len(request.prompt_ids) - 1, np.arange(len(completion.ids))
            own = torch.log_softmax(logits[start:-1], -1)[rows, ids[0, start + 1 :]]
            gaps.append(np.abs(own.numpy() - completion.logprobs))
    return float(np.concatenate(gaps).mean())


@table("form", ["qwen2", "llama"])
def test_in_bf16_logprobs_are_no_farther_from_the_trainers_than_those_of_eager_steps(form):
    config = tiny_config(form)
    config.hidden_size, config.head_dim, config.vocab_size = 64, 16, 1031
    torch.manual_seed(3)
    policy = Policy(
        AutoModelForCausalLM.from_config(config), chain_tokenizer(), ModelOptions(precision="bf16")
    )
    requests = requests_of(policy, 12)
    eager, ours = both(policy, requests, 96)
    gaps = [trainers_gap(policy, requests, completions) for completions in (ours, eager)]
    assert 0 < gaps[0] <= gaps[1] < 0.05


def test_what_was_computed_is_counted_and_the_last_steps_are_not_in_vain():
    """Three responses of four tokens in two slots. Each admission draws a first token. Three steps
    then decode the others: of two slots, and of the bucket of one for the third response."""
    policy = tiny_policy("llama")
    policy.stop_ids = []
    requests = [Request(encoded(policy, PROMPTS[i // 2]), i) for i in range(3)]
    engine = ContinuousEngine(policy, ContinuousOptions(slots=2), static=True)
    decoded = list(engine.generate(requests, temperature=1.0, max_new_tokens=4))
    assert [d.slots for d in decoded] == [2 + 3 * 2, 1 + 3 * 1]
    assert [[i for i, _ in d.completions] for d in decoded] == [[0, 1], [2]]


def test_the_host_looks_every_few_steps():
    policy = tiny_policy("llama")
    policy.stop_ids = []
    requests = [Request(encoded(policy, PROMPTS[0]), 0)]
    engine = ContinuousEngine(policy, ContinuousOptions(slots=2), static=True)
    looks = list(engine.generate(requests, temperature=1.0, max_new_tokens=2 * EVERY + 4))
    assert [d.slots for d in looks] == [1 + EVERY, EVERY, 3]


WIDTHS = [(1, 99, 1), (3, 99, 4), (33, 99, 64), (65, 512, 96), (97, 99, 99), (129, 512, 192)]


@table(("active", "slots", "bucket"), [*WIDTHS, (193, 512, 256), (7, 7, 7)])
def test_buckets(active, slots, bucket):
    assert bucket_of(active, slots) == bucket


def test_calls_share_slots_until_the_engine_sleeps_or_the_weights_move():
    policy = tiny_policy("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(slots=8), static=True)
    requests = requests_of(policy, 1)
    how = {"temperature": 0.9, "max_new_tokens": LIMIT}
    first = collected(engine.generate(requests, **how))
    slots = engine._kept
    assert_same(collected(engine.generate(requests, **how)), first)
    assert engine._kept is slots is not None
    for weight in policy.model.parameters():
        weight.data = weight.data.clone()
    assert_same(collected(engine.generate(requests, **how)), first)
    assert engine._kept is not slots
    engine.sleep()
    assert engine._kept is None


def test_new_weights_in_the_old_places_are_used():
    """As after an update: graphs read the weights where they are."""
    policy = tiny_policy("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(slots=8), static=True)
    requests = requests_of(policy, 2)
    how = {"temperature": 0.9, "max_new_tokens": LIMIT}
    collected(engine.generate(requests, **how))
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight *= 1.1
    policy.weights_changed()
    eager = ContinuousEngine(policy, ContinuousOptions(slots=8))
    assert_same(
        collected(engine.generate(requests, **how)), collected(eager.generate(requests, **how))
    )


def test_nan_logits_stop_the_run():
    policy = tiny_policy("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(slots=8), static=True)
    with torch.no_grad():
        policy.model.lm_head.weight[3] = torch.nan
    with pytest.raises(RunStopped, match="NaN logits"):
        list(engine.generate(requests_of(policy, 1), temperature=1.0, max_new_tokens=4))


def test_the_trial_accepts_what_decodes_and_refuses_another_attention(monkeypatch):
    assert static_fault(tiny_policy("mistral")) == ""
    torch.manual_seed(0)
    config = Gemma2Config(**SIZES, attn_logit_softcapping=50.0)
    policy = Policy(AutoModelForCausalLM.from_config(config), chain_tokenizer(), ModelOptions())
    assert "softcap is not supported" in static_fault(policy)
    monkeypatch.setattr(StaticSlots, "_bias", lambda self, window: 0.0)  # sees unused room
    assert static_fault(tiny_policy("mistral")).startswith("its logits differ by ")


def test_the_trial_accepts_bf16():
    torch.manual_seed(0)
    config = Qwen2Config(**{**SIZES, "hidden_size": 64, "num_attention_heads": 4})
    model = AutoModelForCausalLM.from_config(config)
    assert static_fault(Policy(model, chain_tokenizer(), ModelOptions(precision="bf16"))) == ""


HOW = {"temperature": 0.9, "max_new_tokens": LIMIT}


def test_slots_are_counted_again_for_more_room_and_never_kept_for_it(monkeypatch):
    """As at a refresh: a few short rows for the canary, then one as long as any of the stage. With
    room for 1,000 tokens in all, rows of 40 have 25 slots and rows of 100 have ten."""
    monkeypatch.setattr(static, "_ROOM", 1)
    monkeypatch.setattr(ContinuousEngine, "_count", lambda self, room, limit: 1000 // room)
    policy = tiny_policy("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(), static=True)

    def sizes(lengths: list[int], own: int | None = None, *, ends: bool) -> tuple[int, int]:
        requests = [Request(np.full(n, 3, np.int32), i, own) for i, n in enumerate(lengths)]
        collected(engine.generate(requests, **HOW, more=() if ends else iter([])))
        assert engine._kept is not None
        return engine._kept.slots, engine._kept.room

    assert sizes([10, 12], 8, ends=True) == (2, 20)  # no more come: as many as there are
    assert sizes([60], ends=True) == (1, 100)
    assert sizes([60, 5], ends=False) == (10, 100)
    assert sizes([5], 3, ends=False) == (10, 100)  # they serve
    assert sizes([85], ends=False) == (8, 125)


def test_a_longer_prompt_begins_when_all_others_have_ended(monkeypatch):
    monkeypatch.setattr(static, "_ROOM", 1)
    monkeypatch.setattr(ContinuousEngine, "_count", lambda self, room, limit: 200 // room)
    policy = endless("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(), static=True)
    short, long = (np.full(n, 3, np.int32) for n in (10, 60))
    requests = [Request(short, 0), Request(long, 1), Request(short, 2)]
    reports = list(engine.generate(requests[:1], **HOW, more=iter([(), requests[1:]])))
    assert [[i for i, _ in d.completions] for d in reports if d.completions] == [[0], [1, 2]]
    assert engine._kept is not None and engine._kept.slots == 2
    eager = collected(ContinuousEngine(policy, ContinuousOptions()).generate(requests, **HOW))
    assert_same(collected(reports), eager)


def test_two_calls_at_once_have_slots_of_their_own(monkeypatch):
    monkeypatch.setattr(cache, "_reorderable", lambda _: [])  # as on a GPU
    policy = tiny_policy("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(slots=8), static=True)
    requests = requests_of(policy, 2)
    expected = collected(engine.generate(requests, **HOW))
    one, other = (engine.generate(requests, **HOW) for _ in range(2))
    ours, theirs = [next(one)], [next(other)]
    assert_same(collected([*theirs, *other]), expected)
    assert_same(collected([*ours, *one]), expected)


@table("ending", ["sleep", "close"])
def test_caches_are_freed_by_sleep_and_close_and_after_a_failure(ending, monkeypatch):
    policy = tiny_policy("llama")
    engine = ContinuousEngine(policy, ContinuousOptions(slots=8), static=True)
    collected(engine.generate(requests_of(policy, 1), **HOW))
    getattr(engine, ending)()
    assert engine._kept is None
    monkeypatch.setattr(StaticSlots, "begin", lambda *_: pytest.fail("out of memory"))
    with pytest.raises(pytest.fail.Exception):
        collected(engine.generate(requests_of(policy, 1), **HOW))
    assert engine._kept is None
