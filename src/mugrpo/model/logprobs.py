"""Compute logprob and entropy of response tokens in chunks, never holding all logits at once.

Suffixes: B responses, L prompt and response tokens (right-padded), T response tokens or chosen
ones, N packed response tokens, H hidden size, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from mugrpo.model.rows import plain_hidden, response_places
from mugrpo.model.shared_prompts import shared_hidden
from mugrpo.model.varlen import Kernel


class _ChunkedLogprobs(torch.autograd.Function):
    """An autograd function that saves hidden states and one number per token instead of logits.

    The backward pass recomputes the logits of every chunk but the last. The last chunk's
    exponentials are saved, because the backward pass would otherwise allocate them again at once.
    On a CPU, time goes into passes over the chunk's numbers, so there are as few as possible.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        temperature: float,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies, sums = [], [], []
        for hidden_CH, targets_C in zip(
            hidden_NH.split(chunk), targets_N.split(chunk), strict=True
        ):
            logits_CV = _logits(hidden_CH, weight_VH, bias_V, temperature)
            chosen_C = logits_CV.gather(-1, targets_C[:, None]).squeeze(-1)
            exp_CV = logits_CV.exp()
            sum_C = exp_CV.sum(-1)
            normalizer_C = sum_C.log()
            logprobs.append(chosen_C - normalizer_C)
            entropies.append(normalizer_C - torch.linalg.vecdot(exp_CV, logits_CV) / sum_C)
            sums.append(sum_C)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, targets_N, torch.cat(sums), exp_CV)
        ctx.temperature, ctx.chunk = temperature, chunk
        entropy_N = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_N)
        return torch.cat(logprobs), entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Apply d logprob / d logits = (onehot(target) - softmax) / temperature, chunk by chunk."""
        hidden_NH, weight_VH, bias_V, targets_N, sum_N, last_CV = ctx.saved_tensors
        grad_hidden_NH = torch.empty_like(hidden_NH)
        _, wants_weight, wants_bias, *_ = ctx.needs_input_grad  # not if the head is frozen
        # Ranks hold the head in bf16, in which a sum over chunks would lose their digits.
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if wants_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if wants_bias else None
        for start in range(0, len(targets_N), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            hidden_CH = hidden_NH[part]
            if start + ctx.chunk < len(targets_N):
                exp_CV = _logits(hidden_CH, weight_VH, bias_V, ctx.temperature).exp_()
            else:
                exp_CV = last_CV
            factor_C = grads[0][part] / ctx.temperature
            grad_CV = exp_CV * (-factor_C / sum_N[part])[:, None]
            rows_C = torch.arange(len(hidden_CH), device=grad_CV.device)
            grad_CV[rows_C, targets_N[part]] += factor_C
            grad_CV = grad_CV.to(hidden_CH.dtype)
            grad_hidden_NH[part] = grad_CV @ weight_VH.to(hidden_CH.dtype)
            if grad_weight_VH is not None:
                grad_weight_VH += grad_CV.T @ hidden_CH
            if grad_bias_V is not None:
                grad_bias_V += grad_CV.sum(0)
        parts = (
            None if grad is None else grad.to(weight_VH.dtype)
            for grad in (grad_weight_VH, grad_bias_V)
        )
        return grad_hidden_NH, *parts, None, None, None


def chunked_logprobs(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_N: torch.Tensor,
    *,
    temperature: float,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log_softmax(logits / temperature) at the targets [N], and the entropy [N] in nats.

    logits = hidden @ weight.T + bias, computed in the hidden states' precision; the rest is in
    fp32. Memory beyond the inputs is a few times chunk x V. The entropy carries no gradient.
    """
    assert hidden_NH.ndim == 2 and weight_VH.ndim == 2 and targets_N.ndim == 1
    assert len(hidden_NH) == len(targets_N) > 0
    logprobs_N, entropy_N = _ChunkedLogprobs.apply(
        hidden_NH, weight_VH, bias_V, targets_N, temperature, chunk
    )
    return logprobs_N, entropy_N


def response_logprobs(
    model: Any,
    ids_BL: torch.Tensor,
    prompt_lengths_B: torch.Tensor,
    mask_BT: torch.Tensor,
    prompts_B: torch.Tensor | None = None,
    *,
    temperature: float,
    chunk: int,
    kernel: Kernel | None = None,
    steps_BT: torch.Tensor | None = None,
    watch: Callable[[torch.Tensor], None] = lambda hidden_NH: None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logprob and entropy of each response token under `model`, both [B, T], 0 where masked.

    `ids_BL` holds prompt and response end to end, padded on the right. If `prompts_B`, the number
    of each row's prompt, is given, each prompt is computed once for all its responses. With a
    `kernel`, attention needs no mask and no padding is computed. `steps_BT` holds the tokens'
    indices in their responses, ascending, if they are not all tokens of these. `watch` is called
    with the hidden states [N, H] that the logprobs come from.
    """
    assert ids_BL.ndim == 2 and mask_BT.ndim == 2 and prompt_lengths_B.ndim == 1
    assert steps_BT is None or steps_BT.shape == mask_BT.shape
    rows = (model, ids_BL, prompt_lengths_B, mask_BT)
    if prompts_B is None and kernel is not None:
        prompts_B = torch.arange(len(ids_BL), device=ids_BL.device)
    if prompts_B is None:
        hidden_NH = plain_hidden(*rows, steps_BT)
    else:
        hidden_NH = shared_hidden(*rows, prompts_B, steps_BT, kernel)
    watch(hidden_NH)
    head = model.get_output_embeddings()
    logprobs_N, entropy_N = chunked_logprobs(
        hidden_NH,
        head.weight,
        head.bias,
        ids_BL.flatten()[response_places(ids_BL, prompt_lengths_B, mask_BT, steps_BT)],
        temperature=temperature,
        chunk=chunk,
    )
    zeros_BT = torch.zeros(mask_BT.shape, dtype=logprobs_N.dtype, device=ids_BL.device)
    return zeros_BT.masked_scatter(mask_BT, logprobs_N), zeros_BT.masked_scatter(mask_BT, entropy_N)


def _logits(
    hidden_CH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    temperature: float,
) -> torch.Tensor:
    """Return logits / temperature minus the largest of each token.

    Without the shift, large logits leave few digits for 1 - p of a token with p near 1.
    """
    bias_V = None if bias_V is None else bias_V.to(hidden_CH.dtype)
    logits_CV = F.linear(hidden_CH, weight_VH.to(hidden_CH.dtype), bias_V).float()
    logits_CV = logits_CV if temperature == 1 else logits_CV / temperature
    return logits_CV.sub_(logits_CV.amax(-1, keepdim=True))
