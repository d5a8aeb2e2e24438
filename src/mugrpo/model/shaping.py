"""What a model's forward pass does to logits beside multiplying hidden states by its head.

Cohere and Granite scale them, Gemma bounds them by a tanh. The model is asked, not its name: its
own forward pass runs with hidden states and a head's output that are chosen here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

_MAGNITUDES = 10.0 ** torch.arange(-4, 7)  # the smallest show a scale, the largest a cap
_TOLERANCE = 1e-4  # relative; models compute this in fp32


@dataclass(frozen=True)
class Shaping:
    """logits = cap tanh(scale x / cap), or scale x without a cap; x = hidden @ weight.T + bias."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Return the logits in fp32."""
        logits = raw.float()
        logits = logits if self.scale == 1 else logits * self.scale
        return logits if self.cap is None else (logits / self.cap).tanh_().mul_(self.cap)


PLAIN = Shaping()


def shaping_of(model: Any) -> Shaping:
    """Return what `model` does to its logits. It is found once, and stored on the model.

    Neither blocks nor weights are used, so it works on every rank and on every device. Raises
    ValueError if it is anything but a scale and a cap.
    """
    if "mugrpo_shaping" not in vars(model):
        model.mugrpo_shaping = _found(model)
    found: Shaping = model.mugrpo_shaping
    return found


@torch.no_grad()
def _found(model: Any) -> Shaping:
    """Suffixes: N rows, H hidden size, V vocabulary."""
    head = model.get_output_embeddings()
    fault = ValueError(
        f"the logits of {type(model).__name__} are more than the product of hidden states and a "
        "head, a scale and a cap, so mugrpo cannot compute them; train another model"
    )
    if head is None or model.base_model is model:
        raise fault
    size, width = head.weight.shape
    count = len(_MAGNITUDES)
    # Whole numbers, which bf16 has too. Rows of other sizes, as a norm would be no scale.
    hidden_1NH = ((torch.arange(width) % 7 - 3) * 2.0 ** torch.arange(count)[:, None])[None]
    raw_NV = torch.linspace(-1, 1, size) * _MAGNITUDES[:, None]
    output = _Output(last_hidden_state=hidden_1NH)
    inner = model.get_decoder()  # OPT calls it, not its base model
    ids_1N = torch.ones(1, count, dtype=torch.long)
    try:
        with (
            _returning(model.base_model, output),
            _returning(inner, output),
            _returning(head, raw_NV[None]) as fed,
        ):
            logits_NV = model(input_ids=ids_1N, use_cache=False).logits[0].float()
    except Exception:  # models may fail in any way
        raise fault from None
    if len(fed) != 1 or fed[0].shape != hidden_1NH.shape or logits_NV.shape != raw_NV.shape:
        raise fault
    fed_1NH = fed[0].float()
    factor = (
        fed_1NH.abs().max() / hidden_1NH.abs().max()
    ).item()  # MiniCPM3 scales the head's input
    scale, *_, largest = (logits_NV[:, -1] / _MAGNITUDES).tolist()
    cap = None if largest > 0.5 * scale else logits_NV[-1, -1].item()
    shaping = Shaping(scale, cap)
    same = torch.allclose(shaping(raw_NV), logits_NV, rtol=_TOLERANCE)
    if not same or not torch.allclose(fed_1NH, hidden_1NH * factor, rtol=_TOLERANCE):
        raise fault
    if factor == 1:
        return shaping
    if head.bias is not None:  # which is not scaled
        raise fault
    return Shaping(factor * shaping.scale, shaping.cap)


class _Output(BaseModelOutputWithPast):
    """A base model's output without anything but hidden states, whatever else it may have."""

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _returning(module: nn.Module, output: Any) -> Iterator[list[Any]]:
    """Within the block, let `module` return `output`. Yield what it is called with."""
    fed: list[Any] = []

    def forward(*arguments: Any, **options: Any) -> Any:
        fed.extend(arguments)
        return output

    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield fed
    finally:
        del module.forward
        if before is not None:
            module.forward = before
