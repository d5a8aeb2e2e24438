"""Attention of one's own in Hugging Face models.

A function that transformers' AttentionInterface knows by name gets queries, keys and values of the
tokens that go through the model, and the keyword arguments that the model was called with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_UNKNOWN = ("softcap", "s_aux", "position_bias")  # what some models want of attention besides


@contextmanager
def attending(config: Any, name: str) -> Iterator[None]:
    """Let models of `config` use the attention that transformers knows as `name`."""
    own = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = own


def refuse_unknown(wanted: Mapping[str, Any]) -> None:
    """Raise ValueError where a model wants more of attention than softmax(q k) v in a window."""
    if unknown := [name for name in _UNKNOWN if wanted.get(name) is not None]:
        raise ValueError(f"attention with {', '.join(unknown)}")
