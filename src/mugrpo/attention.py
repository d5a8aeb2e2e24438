"""Attention masks of one's own for Hugging Face decoders. B sequences, T queries, L keys."""

from __future__ import annotations

from typing import Any

import torch

Mask = torch.Tensor | dict[str, torch.Tensor]


def masks_of(config: Any, visible_BTL: torch.Tensor, distance_BTL: torch.Tensor) -> Mask:
    """What a model of `config` takes as its attention mask, true where a query sees a key.

    `distance_BTL` is how many positions a key stands before its query, for models with layers that
    see a window only. Models that name their layers' types get a mask for each type.
    """
    assert visible_BTL.shape == distance_BTL.shape and visible_BTL.ndim == 3
    window = getattr(config, "sliding_window", None)
    near_BTL = visible_BTL if window is None else visible_BTL & (distance_BTL < window)
    types = getattr(config, "layer_types", None)
    if not types:
        return near_BTL[:, None]
    by_type = {"full_attention": visible_BTL, "sliding_attention": near_BTL}
    return {kind: by_type[kind][:, None] for kind in set(types)}
