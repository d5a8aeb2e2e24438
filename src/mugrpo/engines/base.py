"""What an engine is: token ids in, token ids and their logprobs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.records import FinishReason


@dataclass(frozen=True, slots=True)
class Request:
    """One response to sample."""

    prompt_ids: NDArray[np.int32]  # [P]
    seed: int  # 64 bits; with the prompt and the weights it decides the response


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled response."""

    ids: NDArray[np.int32]  # [T], with the end-of-sequence token where it was sampled
    logprobs: NDArray[np.float32]  # [T], log_softmax(logits / temperature) at each id
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Decoded:
    """What an engine has finished since it last handed something over."""

    completions: Sequence[tuple[int, Completion]]  # with the index of the request
    slots: int  # tokens that were computed for it, those of no use among them


class Engine(Protocol):
    """Samples from the policy, as it was at the last refresh or as the trainer has it now."""

    def refresh(self, update: int, weights: Callable[[], str]) -> None:
        """Sample from the policy after `update` updates from here on.

        For an engine that does not share the trainer's model, `weights` names a model directory (or
        a hub id) that holds it.
        """
        ...

    def generate(
        self, requests: Sequence[Request], *, temperature: float, max_new_tokens: int
    ) -> Iterator[Decoded]:
        """A completion for each of `requests`, handed over as they are finished.

        Every token is drawn from softmax(logits / temperature), nothing else (no top-k, no
        penalties), and reported with its logprob under that very distribution.
        """
        ...

    def rest(self) -> None:
        """Give the machine to others, as far as that does not make the next refresh dearer."""
        ...

    def close(self) -> None:
        """Give back everything it holds."""
        ...


class SharedModel:
    """An engine that samples with the trainer's own model: there is nothing to hand over."""

    def refresh(self, update: int, weights: Callable[[], str]) -> None:
        """See `Engine.refresh`."""

    def rest(self) -> None:
        """See `Engine.rest`."""

    def close(self) -> None:
        """See `Engine.close`."""
