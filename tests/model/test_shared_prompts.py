"""Prompts that are computed once, with and without masks, compared with rows on their own."""

import inspect
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import varlen
from transformers import AutoModelForCausalLM, MambaConfig

from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.policy import Policy
from mugrpo.model.self_test import can_share_prompts
from mugrpo.model.shared_prompts import Packing
from mugrpo.model.varlen import varlen_kernel
from tests.builders import tiny_policy
from tests.cases import cross, table

FORMS = ("llama", "qwen2", "qwen3", "gemma3", "mistral", "gpt2")


def rows(groups: list[tuple[int, list[int]]]) -> tuple[torch.Tensor, ...]:
    """Return ids [B, L], prompt lengths [B], mask [B, T] and prompt numbers [B] of random rows.
    `groups` gives (prompt length, response lengths)."""
    generator = np.random.default_rng(2)
    lines, prompt_lengths, prompts, lengths = [], [], [], []
    for number, (prompt_length, of_group) in enumerate(groups):
        prompt = generator.integers(2, 24, prompt_length)
        for length in of_group:
            lines.append([*prompt, *generator.integers(2, 24, length)])
            prompt_lengths.append(prompt_length)
            prompts.append(number)
            lengths.append(length)
    ids = torch.zeros(len(lines), max(map(len, lines)), dtype=torch.long)
    for row, line in enumerate(lines):
        ids[row, : len(line)] = torch.tensor(line)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids, torch.tensor(prompt_lengths), mask, torch.tensor(prompts)


# Prompts shorter and longer than a window of five; a prompt and a response of one token.
RAGGED = [(3, [6, 1]), (9, [4, 12, 7]), (14, [2]), (1, [9, 1])]
CASES = {
    "ragged": RAGGED,
    "prompts of one length": [(9, [4, 12, 1]), (9, [7])],
    "responses of one token": [(3, [1, 1]), (9, [1])],
    "a single row": [(9, [12])],
}


def both(policy: Policy, case: tuple[torch.Tensor, ...]) -> tuple[Any, Any]:
    """Return (logprobs, entropy) of `case`, with each row alone and with shared prompts."""
    ids, prompt_lengths, mask, prompts = case
    plain, shared = (
        response_logprobs(
            policy.working(), ids, prompt_lengths, mask, numbers, temperature=0.7, chunk=16
        )
        for numbers in (None, prompts)
    )
    return plain, shared


def gradients(policy: Policy, logprobs: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradient of a weighted sum of the logprobs for every parameter."""
    weights = torch.linspace(-1, 2, logprobs.numel()).view_as(logprobs)
    policy.model.zero_grad()
    (logprobs * weights).sum().backward()
    return [parameter.grad for parameter in policy.model.parameters()]


def largest(tensors: list[torch.Tensor]) -> float:
    return max(tensor.abs().max().item() for tensor in tensors)


def difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    """Return the largest difference, relative to the largest entry of `b`."""
    return largest([x - y for x, y in zip(a, b, strict=True)]) / largest(b)


@cross(form=FORMS, case=CASES)
def test_shared_prompts_have_the_logprobs_and_gradients_of_rows_alone(form, case):
    policy = tiny_policy(form)
    plain, shared = both(policy, rows(CASES[case]))
    for ours, theirs in zip(shared, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert difference(gradients(policy, shared[0]), gradients(policy, plain[0])) < 1e-5


@table("form", FORMS)
def test_under_gradient_checkpointing_they_have_the_gradients_of_rows_alone_too(form):
    """The backward pass must recompute with the attention of packed tokens."""
    policy, plain_policy = tiny_policy(form, gradient_checkpointing=True), tiny_policy(form)
    assert can_share_prompts(policy.model)
    (plain, _), _ = both(plain_policy, rows(RAGGED))
    _, (shared, _) = both(policy, rows(RAGGED))
    assert difference(gradients(policy, shared), gradients(plain_policy, plain)) < 1e-5


@table("form", ["llama", "gemma3"])
def test_in_bf16_too_the_backward_pass_recomputes_the_attention_of_packed_tokens(form):
    """The copy in bf16 and the model have one config, which says what attention is used."""
    policy = tiny_policy(form, precision="bf16", gradient_checkpointing=True)
    plain_policy = tiny_policy(form, precision="bf16")
    _, (ours, _) = both(policy, rows(RAGGED))
    _, (theirs, _) = both(plain_policy, rows(RAGGED))
    assert torch.equal(ours, theirs)
    assert difference(gradients(policy, ours), gradients(plain_policy, theirs)) < 1e-5


@table("form", ["llama", "gemma3"])
def test_in_bf16_shared_prompts_are_close(form):
    policy = tiny_policy(form, precision="bf16")
    exact = tiny_policy(form)
    case = rows(RAGGED)
    plain, shared = both(policy, case)
    (wanted, _), _ = both(exact, case)
    rounding = (plain[0] - wanted).abs().max().item()
    assert 1e-3 < rounding < 0.5
    assert (shared[0] - wanted).abs().max() < 2 * rounding
    expected = gradients(exact, wanted)
    rounding = difference(gradients(policy, plain[0]), expected)
    assert rounding > 1e-4 and difference(gradients(policy, shared[0]), expected) < 2 * rounding


class Wrapped(nn.Module):
    """A causal model whose base model mishandles packed tokens, as `fault` says."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.inner = tiny_policy("llama").model
        self.config, self.device, self.fault = self.inner.config, self.inner.device, fault
        self.get_output_embeddings = self.inner.get_output_embeddings

    def base_model(self, packing: Any = None, **kwargs: Any) -> Any:
        if packing is None:
            return self.inner.base_model(**kwargs)
        if self.fault == "refuses":
            raise TypeError("no packing")
        if self.fault == "ignores":
            self.config._attn_implementation = "sdpa"
            return self.inner.base_model(**kwargs)
        outputs = self.inner.base_model(packing=packing, **kwargs)
        if self.fault == "detaches":
            outputs.last_hidden_state = outputs.last_hidden_state.detach().requires_grad_()
        return outputs


@table("fault", ["refuses", "ignores", "detaches", "nothing"])
def test_a_model_that_mishandles_packed_tokens_or_has_a_state_is_detected(fault):
    model = Wrapped(fault)
    assert can_share_prompts(model) == (fault == "nothing")
    assert model.config._attn_implementation == "sdpa"
    config = MambaConfig(vocab_size=24, hidden_size=16, num_hidden_layers=1, state_size=4)
    assert not can_share_prompts(AutoModelForCausalLM.from_config(config))


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return what flash attention documents: the last query stands at the last key. A query at i
    sees the keys from i - window_size[0] to i + window_size[1]; -1 is no limit."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    queries, keys = cu_seq_q.diff().tolist(), cu_seq_k.diff().tolist()
    assert (max(queries), max(keys)) == (max_q, max_k) and min(queries) > 0
    assert (sum(queries), sum(keys)) == (len(query), len(key))
    outputs = []
    for q, k, v in zip(query.split(queries), key.split(keys), value.split(keys), strict=True):
        away = torch.arange(len(k)) - torch.arange(len(k) - len(q), len(k))[:, None]
        left, right = window_size
        seen = torch.ones_like(away, dtype=torch.bool)
        seen &= (away >= -left) | (left < 0)
        seen &= (away <= right) | (right < 0)
        sequence = (states.transpose(0, 1)[None] for states in (q, k, v))
        output = F.scaled_dot_product_attention(
            *sequence, attn_mask=seen, scale=scale, enable_gqa=enable_gqa
        )
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs)


@cross(
    form=FORMS,
    case=["ragged", "responses of one token"],
    share=[True, True, False],
    checkpointing=[False, True],
)
def test_packed_rows_have_the_logprobs_and_gradients_of_padded_ones(
    form, case, share, checkpointing, monkeypatch
):
    """Grouped heads, windows of five tokens, prompts that are shared or not; and no mask."""
    for needs_masks in ("visible", "distance", "attention_masks"):
        monkeypatch.delattr(Packing, needs_masks)
    plain_policy, policy = (
        tiny_policy(form),
        tiny_policy(form, gradient_checkpointing=checkpointing),
    )
    *row, prompts = rows(CASES[case])
    options = {"temperature": 0.7, "chunk": 16}
    plain, entropy = response_logprobs(plain_policy.model, *row, **options)
    packed, packed_entropy = response_logprobs(
        policy.model, *row, prompts if share else None, kernel=reference, **options
    )
    torch.testing.assert_close(packed, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed_entropy, entropy, rtol=1e-5, atol=1e-5)
    assert difference(gradients(policy, packed), gradients(plain_policy, plain)) < 1e-5


def test_sequences_by_hand():
    """Prompts of 3 and 9 tokens, responses of 6, 1 and 4, each without its last token. The response
    of one token has nothing to compute. Keys are the prompts, and for each of the other responses
    its prompt's and its own."""
    sequences = Packing(*rows([(3, [6, 1]), (9, [4])])).sequences
    assert sequences.starts_q.tolist() == [0, 3, 12, 17, 20]
    assert sequences.starts_k.tolist() == [0, 3, 12, 20, 32]
    assert sequences.keys.tolist() == [
        *range(12),
        *(0, 1, 2, 12, 13, 14, 15, 16),
        *(*range(3, 12), 17, 18, 19),
    ]
    assert (sequences.longest_q, sequences.longest_k) == (9, 12)


def test_torchs_kernel_takes_these_arguments():
    """All but `enable_gqa`, which came with torch 2.12."""
    ours = inspect.signature(reference).parameters
    theirs = inspect.signature(varlen.varlen_attn).parameters
    assert list(theirs)[:7] == list(ours)[:7] and set(ours) - set(theirs) <= {"enable_gqa"}


@table("knows", [True, False])
def test_a_kernel_that_groups_heads_without_being_told_to_is_not_told_to(knows, monkeypatch):
    def older(*rows: Any, scale: float, window_size: tuple[int, int]) -> Any:
        return reference(*rows, scale=scale, window_size=window_size, enable_gqa=True)

    monkeypatch.setattr(varlen, "varlen_attn", reference if knows else older)
    query, key = torch.randn(5, 4, 8), torch.randn(5, 2, 8)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    rows, how = (query, key, key, starts, starts, 3, 3), {"scale": 0.5, "window_size": (-1, 0)}
    kernel = varlen_kernel()
    assert kernel is not None
    grouped = reference(*rows, **how, enable_gqa=True)
    assert torch.equal(kernel(*rows, **how, enable_gqa=True), grouped)
