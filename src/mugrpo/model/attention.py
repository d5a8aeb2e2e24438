"""Custom attention functions in Hugging Face models.

A function registered with transformers' AttentionInterface receives the queries, keys and values of
the tokens in a forward pass, and the keyword arguments that the model was called with.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_UNKNOWN = ("softcap", "s_aux", "position_bias")  # arguments by which some models change attention


@contextmanager
def attending(config: Any, name: str) -> Iterator[None]:
    """Within the block, let models of `config` use the attention registered as `name`."""
    original = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = original


def refuse_unknown(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError if attention is not plain softmax(q k) v, with or without a window."""
    if unknown := [name for name in _UNKNOWN if arguments.get(name) is not None]:
        raise ValueError(f"attention with {', '.join(unknown)} is not supported")
