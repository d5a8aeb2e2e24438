"""Count the bytes that a model takes on a GPU, from its config alone.

These counts decide how many sequences an engine decodes together and how many tokens an update
computes together where an option leaves it to memory.
"""

from typing import Any, NamedTuple

MOST_SLOTS = 2048
LOGITS = 20  # bytes of an engine's passes over a number of the logits, which are in fp32


class Widths(NamedTuple):
    """Numbers of a model's token: per layer, except for `layers` and `vocabulary`."""

    layers: int
    hidden: int
    queries: int
    cached: int  # keys and values
    inner: int  # of the MLP; of a mixture of experts, those that a token goes through
    vocabulary: int


def widths_of(config: Any) -> Widths:
    """Return the widths of a model with transformers' `config`, 0 for what it does not tell."""
    text = config.get_text_config(decoder=True)
    layers = [text]
    if getattr(text, "is_heterogeneous", False):  # it refuses to name one number for all layers
        layers += text.per_layer_config

    def number(*names: str) -> int:
        """Return the first of these that the config has, the largest of all layers, or 0."""
        for name in names:
            found = [value for layer in layers for value in _values(layer, name)]
            if largest := max(found, default=0):
                return largest
        return 0

    hidden, heads = number("hidden_size", "d_model"), number("num_attention_heads") or 1
    head = number("head_dim") or hidden // heads
    key, value = number("qk_head_dim") or head, number("v_head_dim") or head
    experts = number("moe_intermediate_size", "intermediate_size") * number("num_experts_per_tok")
    return Widths(
        layers=number("num_hidden_layers"),
        hidden=hidden,
        queries=heads * key,
        cached=(number("num_key_value_heads") or heads) * (key + value),
        inner=max(number("intermediate_size", "n_inner") or 4 * hidden, experts),
        vocabulary=number("vocab_size"),
    )


def _values(config: Any, name: str) -> list[int]:
    """Return the numbers that an attribute of a config has: none, one, or one for each layer."""
    try:
        found = getattr(config, name)
    except (AttributeError, RuntimeError):  # it is missing, or differs among layers
        return []
    several = found if isinstance(found, list | tuple) else [found]
    return [value for value in several if isinstance(value, int)]


def cache_bytes(widths: Widths, itemsize: int) -> int:
    """Return the bytes of a token's keys and values in all layers."""
    return widths.layers * widths.cached * itemsize


def slots_that_fit(free_bytes: int, room: int, kv_bytes_a_token: int, vocabulary: int) -> int:
    """Return how many sequences of `room` tokens an engine decodes together in free memory.

    `kv_bytes_a_token` are those of keys and values in all layers (`cache_bytes`). They count twice:
    a cache that grows is copied, and prompts are computed beside it. The result is from 1 to 2,048:
    beyond, reading the caches takes longer than reading the weights, and more slots save little.
    Above 64 it is a multiple of 64.
    """
    each = 2 * room * kv_bytes_a_token + LOGITS * vocabulary
    fitting = max(1, min(MOST_SLOTS, free_bytes // max(1, each)))
    return fitting if fitting <= 64 else fitting // 64 * 64


def activation_bytes(widths: Widths, itemsize: int, *, checkpointing: bool) -> int:
    """Return the bytes that a token of a micro-batch keeps for the backward pass.

    A layer of Qwen3 keeps, in bf16, 16 B of each hidden number (twice a norm's input in fp32, its
    normalized form and its output), 10 and 5 of each of the queries and the cached ones (projected,
    normalized, rotated), and 8 of each of the MLP's (two products, an activation, what the last
    product takes). These are autograd's saved tensors, with attention that keeps no scores. Other
    models keep less. One more layer is that of the gradients on their way.
    """
    layer = 16 * widths.hidden + 10 * widths.queries + 5 * widths.cached + 8 * widths.inner
    if checkpointing:  # the input of each layer, and one layer that is computed again
        return itemsize // 2 * (2 * widths.hidden * widths.layers + 2 * layer)
    return itemsize // 2 * layer * (widths.layers + 1)


def head_bytes(widths: Widths, *, trained: bool) -> int:
    """Return the bytes of an update's passes over logits, and of the gradient of a `trained` head.

    Logits of 1,024 tokens are computed at once: 20 B of each of their numbers.
    """
    return widths.vocabulary * (1024 * LOGITS + 4 * widths.hidden * trained)
