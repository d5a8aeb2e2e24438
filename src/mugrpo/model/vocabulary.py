"""The facts about a model's tokens that an engine needs, even if it never loads the model."""

from dataclasses import dataclass
from typing import Any

from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError


@dataclass(frozen=True)
class Vocabulary:
    """The number of a model's token ids, and the ids that end a response."""

    size: int
    stop_ids: list[int]  # ascending


def vocabulary_of(
    size: int, tokenizer: Any, generation_config: Any, options: ModelOptions
) -> Vocabulary:
    """Return the vocabulary of a model with `size` embeddings.

    A response ends at the end-of-sequence token of the tokenizer, or at one of those in the
    generation config. Raises UsageError if one of these tokens is outside the embeddings.
    """
    eos_ids = getattr(generation_config, "eos_token_id", None)
    ids = eos_ids if isinstance(eos_ids, list) else [] if eos_ids is None else [eos_ids]
    stop_ids = sorted({tokenizer.eos_token_id, *ids})
    if max(stop_ids) >= size:
        raise UsageError(
            f"the end-of-sequence id {max(stop_ids)} is outside the model's "
            f"{size} embeddings: the tokenizer of {options.path} belongs to another model"
        )
    return Vocabulary(size, stop_ids)
