"""The interface of an engine: token ids in, token ids and their logprobs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.records import FinishReason

_ROUNDING = 1e-3  # a logprob above 0 that is only imprecise: log-softmax in fp32 was 1e-6 off
WAIT = 0.02  # seconds at most between two calls of `more` by an engine that has room


@dataclass(frozen=True, slots=True)
class Request:
    """A response to sample: prompt ids [P] int32, and a seed of 64 bits."""

    prompt_ids: NDArray[np.int32]  # [P]
    seed: int  # 64 bits; prompt, weights and seed determine the response
    max_new_tokens: int | None = None  # the request's own limit, if it is below the call's


More = Callable[[], Sequence[Request] | None]  # requests that have come; None: none ever will


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampled response."""

    ids: NDArray[np.int32]  # [T], including the end-of-sequence token if it was sampled
    logprobs: NDArray[np.float32]  # [T], under the distribution that each id was drawn from
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Decoded:
    """The responses that an engine has finished since its last report."""

    completions: Sequence[tuple[int, Completion]]  # (index of the request, completion)
    slots: int  # response positions computed since then, including idle and padded ones if known


class Engine(Protocol):
    """A sampler of responses from the policy.

    Its weights are those of the last refresh, or the trainer's own if they share the model.
    """

    @property
    def streams(self) -> bool:
        """Whether it takes requests while it works on others."""
        ...

    @property
    def exact(self) -> bool:
        """Whether completions have the same bits whenever the same requests come at the same steps.

        A step is one `Decoded` of `generate`.
        """
        ...

    def refresh(self, update: int, weights: Callable[[], str]) -> dict[str, float]:
        """Switch to the weights that the policy has after `update` updates.

        An engine that does not share the trainer's model calls `weights`, which returns a model
        directory (or a hub id) with the policy's weights. Returns the seconds of the work by its
        parts, other than the call of `weights`: "start" (a process), "wake" and "load".
        """
        ...

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        max_new_tokens: int,
        top_p: float = 1.0,
        more: More | None = None,
    ) -> Iterator[Decoded]:
        """Yield a completion for each of `requests`, as they finish.

        Every token is drawn from softmax(logits / temperature) and nothing else (no top-k, no
        penalties), and reported with its logprob under that same distribution.

        If `top_p` < 1, the distribution is restricted to its nucleus and renormalized, and logprobs
        are those of the result. The nucleus is the smallest set of most likely tokens whose
        probability reaches `top_p` (Holtzman et al., arXiv 1904.09751), with the token that crosses
        it. Only evaluations ask for it: training needs the whole distribution.

        Only an engine that `streams` may be given `more`, which it calls when it has room. `more`
        returns the requests that have come since, which may be none, or None if no request will
        ever come again. Their indices follow those of the ones before. An engine without work
        yields an empty `Decoded` and calls `more` again, so `more` may then wait for a moment.
        """
        ...

    def rest(self) -> None:
        """Free what the engine holds, if that does not slow down the next refresh."""
        ...

    def close(self) -> None:
        """Free everything that the engine holds."""
        ...


class SharedModel:
    """An engine that samples with the trainer's own model, so no weights are handed over."""

    exact = True

    def refresh(self, update: int, weights: Callable[[], str]) -> dict[str, float]:
        """See `Engine.refresh`."""
        return {}

    def rest(self) -> None:
        """See `Engine.rest`."""

    def close(self) -> None:
        """See `Engine.close`."""


def checked(
    ids: NDArray[np.integer[Any]],
    logprobs: NDArray[np.floating[Any]],
    reason: str,
    *,
    longest: int,
    vocab_size: int,
    source: str,
) -> Completion:
    """Return a response from another process as a Completion.

    A wrong id or logprob would be a wrong gradient. Raises RunStopped, naming `source`, if it is
    empty, longer than `longest` tokens, or has ids or logprobs that no model gives.
    """
    fault = None
    if not 0 < len(ids) <= longest or len(ids) != len(logprobs):
        fault = f"{len(ids)} ids with {len(logprobs)} logprobs, where {longest} are asked for"
    elif ids.min() < 0 or ids.max() >= vocab_size:
        fault = f"token ids {ids.min()} to {ids.max()} of a vocabulary of {vocab_size}"
    elif not np.isfinite(logprobs).all():
        fault = "non-finite logprobs"
    elif logprobs.max() > _ROUNDING:
        fault = f"a logprob of {logprobs.max():g}, which no probability has"
    elif reason not in list(FinishReason):
        fault = f"a response with finish reason {reason!r}"  # such as "abort" of vLLM
    if fault:
        raise RunStopped(f"the engine returned {fault}; see {source}")
    return Completion(
        ids.astype(np.int32, copy=False),
        logprobs.astype(np.float32, copy=False),
        FinishReason(reason),
    )
