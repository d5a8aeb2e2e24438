"""Sampling by inverting the cumulative distribution function at counter-based uniforms.

Suffixes: B responses, T tokens, V vocabulary, N blocks of the vocabulary, K tokens of a block,
L most likely tokens.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from mugrpo.disk.errors import RunStopped
from mugrpo.model.policy import Policy

_BLOCK = 256  # tokens per block of the vocabulary; a block's probabilities are added up first
_LIKELY = 1024  # tokens that are sorted first to find a nucleus; it rarely has more


def uniforms(seeds: Sequence[int], length: int) -> NDArray[np.float64]:
    """Return one uniform in [0, 1) per (seed, position), [B, T], from Philox keyed by the seed.

    Each number depends on its seed and position alone.
    """
    rows = [np.random.Generator(np.random.Philox(key=seed)).random(length) for seed in seeds]
    return np.stack(rows)


def left_padded(prompts: Sequence[np.ndarray], policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids of prompts and a mask of their tokens, both [B, P], on the policy's device."""
    longest = max(map(len, prompts))
    ids_BP = np.full((len(prompts), longest), policy.pad_id, np.int64)
    mask_BP = np.zeros((len(prompts), longest), np.int64)
    for row, prompt in enumerate(prompts):
        ids_BP[row, longest - len(prompt) :] = prompt
        mask_BP[row, longest - len(prompt) :] = 1
    return torch.from_numpy(ids_BP).to(policy.device), torch.from_numpy(mask_BP).to(policy.device)


def sample(
    logits_BV: torch.Tensor, temperature: float, uniforms_B: torch.Tensor, top_p: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample token ids [B] and return them with their logprobs [B].

    The distribution is softmax(logits / temperature), or its `nucleus` if `top_p` < 1. The token of
    a row is the first one at which the cumulative distribution function exceeds the row's uniform.
    The function is accumulated in float64, first over blocks of the vocabulary, then within one
    block. A token of probability 0 is never returned. Rows without a distribution (NaN logits) get
    a NaN logprob.
    """
    # Not torch.multinomial, whose draws depend on the other rows and on the device.
    assert logits_BV.ndim == 2 and uniforms_B.ndim == 1 and 0 < top_p <= 1
    scaled_BV = logits_BV.float()
    scaled_BV = scaled_BV if temperature == 1 else scaled_BV / temperature
    probabilities_BV = torch.softmax(scaled_BV, -1)
    if top_p < 1:
        probabilities_BV = nucleus(probabilities_BV, top_p)
    block = min(_BLOCK, probabilities_BV.shape[-1])
    blocks_BN = F.pad(_block_sums(probabilities_BV, block).double().cumsum(-1), (1, 0))
    target_B1 = uniforms_B[:, None] * blocks_BN[:, -1:]
    block_B1 = _first_above(blocks_BN[:, 1:], target_B1)
    start_B1, end_B1 = blocks_BN.gather(-1, block_B1), blocks_BN.gather(-1, block_B1 + 1)
    places_BK = block_B1 * block + torch.arange(block, device=block_B1.device)
    inside_BK = places_BK < probabilities_BV.shape[-1]
    of_block_BK = probabilities_BV.gather(-1, places_BK.where(inside_BK, 0)).double() * inside_BK
    within_BK = of_block_BK.cumsum(-1)
    # The block's sum was taken in float32, so rescale the target to the float64 sum of its tokens.
    share_B1 = (target_B1 - start_B1) / (end_B1 - start_B1)
    last_B1 = block - 1 - (of_block_BK > 0).flip(-1).int().argmax(-1, keepdim=True)
    place_B1 = _first_above(within_BK, share_B1 * within_BK[:, -1:]).minimum(last_B1)
    token_B1 = block_B1 * block + place_B1
    token_B1 = token_B1.clamp(max=probabilities_BV.shape[-1] - 1)
    return token_B1.squeeze(-1), probabilities_BV.gather(-1, token_B1).log().squeeze(-1)


def nucleus(probabilities_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return each row's distribution restricted to its nucleus and renormalized, [B, V].

    The nucleus is the smallest set of most likely tokens whose probability reaches `top_p`
    (Holtzman et al., arXiv 1904.09751). So it includes the token that crosses `top_p`, and at
    least one. Of equally likely tokens at its edge, it takes those with the lowest ids, as vLLM
    does on a GPU. Rows of NaN stay NaN.

    Tokens stay in the order of their ids. So `sample` is no more sensitive to rounding than
    without `top_p`. A core takes about 0.35 s for 64 x 152,000 probabilities, seven times as long
    as `sample` alone, and four times that if a nucleus has more than 1,024 tokens: then all are
    sorted.
    """
    sorted_BL = probabilities_BV.topk(min(_LIKELY, probabilities_BV.shape[-1])).values
    cumulative_BL = sorted_BL.cumsum(-1, dtype=torch.float64)
    if (cumulative_BL[:, -1] < top_p).any():
        sorted_BL = probabilities_BV.sort(-1, descending=True).values
        cumulative_BL = sorted_BL.cumsum(-1, dtype=torch.float64)
    size_B1 = (cumulative_BL - sorted_BL < top_p).sum(-1, keepdim=True).clamp(min=1)
    edge_B1 = sorted_BL.gather(-1, size_B1 - 1)
    above_BV, tied_BV = probabilities_BV > edge_B1, probabilities_BV == edge_B1
    room_B1 = size_B1 - above_BV.sum(-1, keepdim=True)
    inside_BV = above_BV | (tied_BV & (tied_BV.cumsum(-1) <= room_B1))
    kept_BV = probabilities_BV.where(inside_BV, 0)
    return kept_BV / kept_BV.sum(-1, keepdim=True)


def refuse_nan(logprobs_B: torch.Tensor, policy: Policy) -> None:
    """Raise RunStopped if a logprob is NaN, which means that its row had no distribution."""
    if logprobs_B.isnan().any():
        raise RunStopped(
            f"the policy after update {policy.update} gives NaN logits; continue from an "
            "earlier checkpoint with a lower --optimizer.lr"
        )


def _block_sums(probabilities_BV: torch.Tensor, block: int) -> torch.Tensor:
    """Return the sum over each block of `block` tokens, [B, N]. The last block may be shorter."""
    full_blocks = probabilities_BV.shape[-1] // block * block
    sums_BN: torch.Tensor = probabilities_BV[:, :full_blocks].unflatten(-1, (-1, block)).sum(-1)
    if full_blocks == probabilities_BV.shape[-1]:
        return sums_BN
    return torch.cat([sums_BN, probabilities_BV[:, full_blocks:].sum(-1, keepdim=True)], -1)


def _first_above(cumulative_BN: torch.Tensor, targets_B1: torch.Tensor) -> torch.Tensor:
    """Return the first index at which each row exceeds its target, [B, 1].

    If a row never does, return its last index.
    """
    places_B1: torch.Tensor = torch.searchsorted(cumulative_BN.contiguous(), targets_B1, right=True)
    return places_B1.clamp(max=cumulative_BN.shape[-1] - 1)
