"""Attention without masks, by a reference with the arguments of torch's CUDA kernel."""

import inspect

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.shared_prompts import Packing
from tests.builders import tiny_policy
from tests.cases import cross
from tests.model.test_shared_prompts import CASES, FORMS, difference, gradients, rows


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
    """Return what flash attention documents: the last query stands at the last key.

    A query at i sees the keys from i - window_size[0] to i + window_size[1]; -1 is no limit.
    """
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
    """Prompts of 3 and 9 tokens, responses of 6, 1 and 4, each without its last token.

    The response of one token has nothing to compute. Keys are the prompts, and for each of the
    other responses its prompt's and its own.
    """
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
    ours = inspect.signature(reference).parameters
    theirs = inspect.signature(varlen_attn).parameters
    assert list(theirs)[:7] == list(ours)[:7] and set(ours) <= set(theirs)
