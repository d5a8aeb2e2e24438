"""Compute logprob and entropy of response tokens in chunks, never holding all logits at once.

Suffixes: B responses, L prompt and response tokens (right-padded), T response tokens or chosen
ones, N packed response tokens, H hidden size, V vocabulary, C tokens of a chunk, R tokens of a
block.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike

from mugrpo.model.compiled import compiled_code
from mugrpo.model.rows import on_host, plain_hidden, response_places, sent
from mugrpo.model.shaping import PLAIN, Shaping
from mugrpo.model.shared_prompts import shared_hidden
from mugrpo.model.varlen import Kernel

# Numbers of a block. A CPU's cores hold it in their caches from one pass to the next. On a GPU it
# bounds the memory of the passes (256 MiB each), and starts few kernels.
_ON_CPU, _ON_GPU = 2**18, 2**26


class _ChunkedLogprobs(torch.autograd.Function):
    """An autograd function that saves hidden states and two numbers per token instead of logits.

    The backward pass recomputes the logits of every chunk but the last, and turns logits into their
    gradients in place. On a CPU, time goes into passes over a chunk's numbers, so it takes them in
    blocks that stay in its caches.
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
        shaping: Shaping,
        compiled: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scored = _compiled(_scored) if compiled else _scored
        found: list[tuple[torch.Tensor, ...]] = []
        for hidden_CH, targets_C in zip(
            hidden_NH.split(chunk), targets_N.split(chunk), strict=True
        ):
            logits_CV = _logits(hidden_CH, weight_VH, bias_V)
            found += [
                scored(logits_CV[block], targets_C[block, None], temperature, shaping)
                for block in _blocks(logits_CV)
            ]
        logprobs_N, entropy_N, peak_N1, sum_N = map(torch.cat, zip(*found, strict=True))
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, targets_N, peak_N1, sum_N)
        ctx.temperature, ctx.chunk, ctx.last_CV = temperature, chunk, logits_CV
        ctx.shaping, ctx.compiled = shaping, compiled
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Apply d logprob / d logits = (onehot(target) - softmax) / temperature, chunk by chunk.

        With a cap, d logits / d x = scale (1 - (logits / cap)^2).
        """
        hidden_NH, weight_VH, bias_V, targets_N, peak_N1, sum_N = ctx.saved_tensors
        grad_hidden_NH = torch.empty_like(hidden_NH)
        _, wants_weight, wants_bias, *_ = ctx.needs_input_grad  # not if the head is frozen
        grad_weight_VH, grad_bias_V = None, None
        temperature, shaping = ctx.temperature, ctx.shaping
        into_gradients = _compiled(_into_gradients) if ctx.compiled else _into_gradients
        factor_N = grads[0] / (temperature / shaping.scale)
        starts = range(0, len(targets_N), ctx.chunk)
        for start in starts:
            part = slice(start, start + ctx.chunk)
            hidden_CH, targets_C = hidden_NH[part], targets_N[part]
            peak_C1, sum_C, factor_C = peak_N1[part], sum_N[part], factor_N[part]
            logits_CV = None
            if start == starts[-1]:  # they are gone if this is not the first backward pass
                logits_CV, ctx.last_CV = ctx.last_CV, None
            if logits_CV is None:
                logits_CV = _logits(hidden_CH, weight_VH, bias_V)
            for block in _blocks(logits_CV):
                logits_RV, targets_R1 = logits_CV[block], targets_C[block, None]
                tokens = (peak_C1[block], sum_C[block], factor_C[block])
                chosen_R1 = into_gradients(logits_RV, targets_R1, *tokens, temperature, shaping)
                logits_RV.scatter_(-1, targets_R1, chosen_R1.to(logits_RV.dtype))
            grad_CV = logits_CV
            grad_hidden_NH[part] = grad_CV @ weight_VH.to(grad_CV.dtype)
            if wants_weight:
                grad_weight_VH = _sum(grad_weight_VH, grad_CV.T @ hidden_CH)
            if wants_bias:
                grad_bias_V = _sum(grad_bias_V, grad_CV.sum(0, dtype=torch.float32))
        parts = (
            None if grad is None else grad.to(weight_VH.dtype)
            for grad in (grad_weight_VH, grad_bias_V)
        )
        return grad_hidden_NH, *parts, None, None, None, None, None


def _scored(
    logits_RV: torch.Tensor, targets_R1: torch.Tensor, temperature: float, shaping: Shaping
) -> tuple[torch.Tensor, ...]:
    """Return logprobs [R], entropy [R], the largest logits [R, 1] and the sums of exponentials."""
    logits_RV = _tempered(shaping(logits_RV), temperature)
    peak_R1 = logits_RV.amax(-1, keepdim=True)
    logits_RV = logits_RV - peak_R1
    exp_RV = logits_RV.exp()
    sum_R = exp_RV.sum(-1)
    normalizer_R = sum_R.log()
    chosen_R = logits_RV.gather(-1, targets_R1).squeeze(-1)
    entropy_R = normalizer_R - torch.linalg.vecdot(exp_RV, logits_RV) / sum_R
    return chosen_R - normalizer_R, entropy_R, peak_R1, sum_R


def _into_gradients(
    logits_RV: torch.Tensor,
    targets_R1: torch.Tensor,
    peak_R1: torch.Tensor,
    sum_R: torch.Tensor,
    factor_R: torch.Tensor,
    temperature: float,
    shaping: Shaping,
) -> torch.Tensor:
    """Put gradients in place of logits, but not the targets' own: return these, [R, 1].

    To add to a few numbers within the passes would keep a compiler from making them one.
    """
    tempered_RV = _tempered(shaping(logits_RV), temperature)
    grad_RV = (tempered_RV - peak_R1).exp_()
    grad_RV *= (-factor_R / sum_R)[:, None]
    chosen_R1 = grad_RV.gather(-1, targets_R1) + factor_R[:, None]
    if shaping.cap is not None:
        slope_RV = 1 - (tempered_RV * (temperature / shaping.cap)).square_()
        grad_RV *= slope_RV
        chosen_R1 *= slope_RV.gather(-1, targets_R1)
    logits_RV.copy_(grad_RV)
    return chosen_R1


_compiled = cache(compiled_code)


def chunked_logprobs(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_N: torch.Tensor,
    *,
    temperature: float,
    chunk: int,
    shaping: Shaping = PLAIN,
    compiled: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log_softmax(logits / temperature) at the targets [N], and the entropy [N] in nats.

    logits = shaping(hidden @ weight.T + bias). The product is computed in the hidden states'
    precision, the rest in fp32. Memory beyond the inputs is a few times chunk x V. The entropy
    carries no gradient. `compiled` makes one pass over the logits of several.
    """
    assert hidden_NH.ndim == 2 and weight_VH.ndim == 2 and targets_N.ndim == 1
    assert len(hidden_NH) == len(targets_N) > 0
    logprobs_N, entropy_N = _ChunkedLogprobs.apply(
        hidden_NH, weight_VH, bias_V, targets_N, temperature, chunk, shaping, compiled
    )
    return logprobs_N, entropy_N


def response_logprobs(
    model: Any,
    ids_BL: ArrayLike,
    prompt_lengths_B: ArrayLike,
    mask_BT: ArrayLike,
    prompts_B: ArrayLike | None = None,
    *,
    temperature: float,
    chunk: int,
    kernel: Kernel | None = None,
    compiled: bool = False,
    steps_BT: ArrayLike | None = None,
    watch: Callable[[torch.Tensor], None] = lambda hidden_NH: None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logprob and entropy of each response token under `model`, both [B, T], 0 where masked.

    The host waits for inputs that are on a GPU. Results are on the model's device.
    `ids_BL` holds prompt and response end to end, padded on the right. If `prompts_B`, the number
    of each row's prompt, is given, each prompt is computed once for all its responses. With a
    `kernel`, attention needs no mask and no padding is computed. For `compiled`, see
    `chunked_logprobs`. `steps_BT` holds the tokens' indices in their responses, ascending, if they
    are not all tokens of these. `watch` is called with the hidden states [N, H] that the logprobs
    come from.
    """
    ids_BL, prompt_lengths_B, mask_BT = map(on_host, (ids_BL, prompt_lengths_B, mask_BT))
    assert ids_BL.ndim == 2 and mask_BT.ndim == 2 and prompt_lengths_B.ndim == 1
    assert steps_BT is None or np.shape(steps_BT) == mask_BT.shape
    rows = (ids_BL, prompt_lengths_B, mask_BT)
    if prompts_B is None and kernel is not None:
        prompts_B = np.arange(len(ids_BL))
    if prompts_B is None:
        hidden_NH = plain_hidden(model, *rows, steps_BT)
    else:
        hidden_NH = shared_hidden(model, *rows, prompts_B, steps_BT, kernel)
    watch(hidden_NH)
    head = model.get_output_embeddings()
    logprobs_N, entropy_N = chunked_logprobs(
        hidden_NH,
        head.weight,
        head.bias,
        sent(ids_BL.ravel()[response_places(*rows, steps_BT)], model.device),
        temperature=temperature,
        chunk=chunk,
        shaping=Shaping.of(model),
        compiled=compiled,
    )
    chosen_N = sent(np.flatnonzero(mask_BT), model.device)

    def unpacked(values_N: torch.Tensor) -> torch.Tensor:
        return values_N.new_zeros(mask_BT.shape).put(chosen_N, values_N)

    return unpacked(logprobs_N), unpacked(entropy_N)


def full_logits(hidden_NH: torch.Tensor, head: Any, shaping: Shaping) -> torch.Tensor:
    """Return the logits whose logprobs `chunked_logprobs` computes, all of them, [N, V] in fp32."""
    return shaping(_logits(hidden_NH, head.weight, head.bias))


def _logits(
    hidden_CH: torch.Tensor, weight_VH: torch.Tensor, bias_V: torch.Tensor | None
) -> torch.Tensor:
    """Return the logits in the hidden states' precision, [C, V]."""
    bias_V = None if bias_V is None else bias_V.to(hidden_CH.dtype)
    return F.linear(hidden_CH, weight_VH.to(hidden_CH.dtype), bias_V)


def _blocks(numbers_CV: torch.Tensor) -> list[slice]:
    """Return the rows of each block."""
    rows, size = numbers_CV.shape
    step = max(1, (_ON_CPU if numbers_CV.device.type == "cpu" else _ON_GPU) // size)
    return [slice(start, start + step) for start in range(0, rows, step)]


def _tempered(logits_RV: torch.Tensor, temperature: float) -> torch.Tensor:
    return logits_RV if temperature == 1 else logits_RV / temperature


def _sum(total: torch.Tensor | None, term: torch.Tensor) -> torch.Tensor:
    """Return `total` + `term` in fp32: bf16 would lose the digits of a sum over chunks."""
    return term if total is None else total.float().add_(term)
