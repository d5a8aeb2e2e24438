"""The counts by hand, and against PyTorch's own counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from counts import Group, Shape, Work, causal, decoded, forward_flop, passed, prefill

# 132 parameters that every token passes, a head of 28, 24 operations for a pair.
TINY = Shape(
    hidden=4, layers=1, heads=2, kv_heads=1, head_dim=3, intermediate=5, vocab=7, tied=True
)


def test_parameters_and_a_forward_pass_by_hand():
    # query 4x6, key and value 4x3 each, output 6x4, gate, up and down 4x5 each
    assert TINY.linear_parameters == 24 + 12 + 12 + 24 + 20 + 20 + 20 == 132
    assert TINY.parameters == 132 + 28
    # Five tokens, causal: 15 pairs; logits at two of them.
    assert causal(5) == 15
    # 2 x 132 x 5; scores and values: 2 x (2 heads x 3) x 15 each; 2 x 4 x 7 x 2
    assert forward_flop(TINY, Work(5, causal(5), 2)) == 1320 + 2 * 2 * 6 * 15 + 112


def test_work_of_groups_by_hand_and_prefill_and_decode_are_one_pass():
    # A prompt of 3 tokens with responses of 1 and 4, whose last tokens are not fed.
    groups = [Group(3, [1, 4])]
    plain = passed(groups, shared=False)
    assert (plain.tokens, plain.positions) == (3 + 6, 1 + 4)
    assert plain.pairs == causal(3) + causal(6)
    shared = passed(groups, shared=True)
    assert (shared.tokens, shared.positions) == (3 + 3, 1 + 3)
    assert shared.pairs == causal(6)
    assert prefill(groups, shared=True).tokens == 3
    assert prefill(groups, shared=False).positions == 2
    steps = decoded(groups)
    assert (steps.tokens, steps.pairs) == (3, 4 + 5 + 6)
    groups = [Group(5, [2, 7, 7]), Group(9, [1, 1, 3])]
    whole = passed(groups, shared=True)
    parts = prefill(groups, shared=True), decoded(groups)
    for name in ("tokens", "pairs", "positions"):
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts)


@pytest.mark.parametrize("form", [LlamaConfig, Qwen2Config])  # tied; with biases
def test_counts_equal_pytorchs_counter(form):
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2}
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "vocab_size": 96}
    config = form(**heads, **sizes, tie_word_embeddings=form is LlamaConfig)
    torch.manual_seed(0)
    # The products of eager attention are plain matmuls, which the counter knows.
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    batch, length = 2, 17
    ids = torch.randint(0, 96, (batch, length))
    with FlopCounterMode(display=False) as forward:
        logits = model(input_ids=ids, use_cache=False).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    shape = Shape.of(config.to_dict())
    # Eager attention computes every pair, future ones too.
    flop = forward_flop(shape, Work(batch * length, batch * length * length, batch * length))
    assert forward.get_total_flops() == pytest.approx(flop, rel=0.02)
    assert backward.get_total_flops() == pytest.approx(2 * flop, rel=0.02)
    parameters = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    assert shape.parameters == parameters
