"""The interface of an engine: token ids in, token ids and their logprobs out."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.records import FinishReason
from mugrpo.processes.messages import printable

_ROUNDING = 1e-3  # a logprob above 0 that is only imprecise: log-softmax in fp32 was 1e-6 off
WAIT = 0.02  # seconds at most until an engine that has room looks at `more` again


@dataclass(frozen=True, slots=True)
class Request:
    """A response to sample: prompt ids [P] int32, and a seed of 64 bits."""

    prompt_ids: NDArray[np.int32]  # [P]
    seed: int  # 64 bits; prompt, weights and seed determine the response
    max_new_tokens: int | None = None  # the request's own limit, if it is below the call's


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


class Engine:
    """A sampler of responses from the policy.

    Its weights are those of the last refresh, or the trainer's own if they share the model.
    """

    # Whether completions have the same bits whenever the same requests come at the same steps. A
    # step is one `Decoded` of `generate`.
    exact = True

    def refresh(self, update: int, weights: Callable[[], str]) -> float:
        """Switch to the weights that the policy has after `update` updates.

        An engine that does not share the trainer's model calls `weights`, which returns a model
        directory (or a hub id) with the policy's weights. Returns the seconds of its work other
        than that call: to start a process, wake and load.
        """
        return 0.0

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        max_new_tokens: int,
        top_p: float = 1.0,
        more: Iterable[Sequence[Request]] = (),
    ) -> Iterator[Decoded]:
        """Yield a completion for each of `requests`, as they finish.

        Every token is drawn from softmax(logits / temperature) and nothing else (no top-k, no
        penalties), and reported with its logprob under that same distribution.

        If `top_p` < 1, the distribution is restricted to its nucleus and renormalized, and logprobs
        are those of the result. The nucleus is the smallest set of most likely tokens whose
        probability reaches `top_p` (Holtzman et al., arXiv 1904.09751), with the token that crosses
        it. Only evaluations ask for it: training needs the whole distribution.

        The batches of `more` are requests that come later. The engine takes the next one when it
        has room. One may be empty: none has come since. Their indices follow those of the ones
        before. An engine without work yields an empty `Decoded` and takes the next batch, so
        `more` may then wait for a moment.
        """
        raise NotImplementedError

    def sleep(self) -> None:
        """Free what the engine holds, if that does not slow down the next refresh."""

    def close(self) -> None:
        """Free everything that the engine holds."""
        self.sleep()


class Arrivals:
    """The requests of one call of `Engine.generate`, in batches, by their indices."""

    def __init__(self, requests: Sequence[Request], more: Iterable[Sequence[Request]]) -> None:
        self._batches = chain([requests], more)
        self._alone = isinstance(more, Sized) and not more  # no others ever come
        self._count = 0
        self.open = True  # whether more may come

    def take(self) -> dict[int, Request]:
        """Return the next batch. It is empty if no request has come since, or if none ever will."""
        batch = next(self._batches, None)
        self.open = batch is not None and not self._alone
        numbered = dict(enumerate(batch or (), self._count))
        self._count += len(numbered)
        return numbered


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
    sound = (
        0 < len(ids) == len(logprobs) <= longest
        and 0 <= ids.min() <= ids.max() < vocab_size
        and np.isfinite(logprobs).all()
        and logprobs.max() <= _ROUNDING
        and reason in list(FinishReason)  # such as "abort" of vLLM is not
    )
    if not sound:
        raise RunStopped(
            f"the engine returned an impossible completion: at most {longest} ids of a vocabulary "
            f"of {vocab_size} are {_shown(ids)}, with logprobs {_shown(logprobs)}, and end by "
            f"{reason!r}; see {source}"
        )
    return Completion(
        ids.astype(np.int32, copy=False),
        logprobs.astype(np.float32, copy=False),
        FinishReason(reason),
    )


def _shown(values: NDArray[Any]) -> str:
    return printable(str(values.tolist()), 80)
