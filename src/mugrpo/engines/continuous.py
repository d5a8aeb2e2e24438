"""Continuous batching over a Hugging Face model: a slot is refilled as soon as it is free.

The prompt that a group's responses share is computed once and stored once in the cache. Each step
decodes one token for every active slot. Active slots are always the first ones: if a response ends,
the last active slot moves into its place.

Suffixes: A active slots, S slots, T response tokens, U prompts, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from mugrpo.config.engines import ContinuousOptions, slots_for
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Arrivals, Completion, Decoded, Engine, Request
from mugrpo.engines.cache import ATTENTION, Reordered, SlotCache
from mugrpo.engines.sampling import refuse_nan, sample, uniforms
from mugrpo.engines.static import StaticSequences, StaticSlots, room_of, rounded
from mugrpo.engines.waiting import Waiting, prefill
from mugrpo.model.attention import attending
from mugrpo.model.policy import Policy
from mugrpo.model.sizes import cache_bytes, slots_that_fit, widths_of


class ContinuousEngine(Engine):
    """An engine that decodes in slots with the trainer's own model. A refresh loads nothing.

    If it is `static`, steps have static shapes, as a GPU captures them (see `engines.static`), but
    for a nucleus, which branches on its data. `share` engines have the GPU together.
    """

    def __init__(
        self, policy: Policy, options: ContinuousOptions, *, static: bool = False, share: int = 1
    ) -> None:
        self.policy = policy
        self.options = options
        self._share = share
        self._static = static
        self._kept: StaticSlots | None = None  # those of the last call
        self._stream: Any = None  # on which their steps are captured
        self._copies: tuple[int, Reordered] | None = None  # with the policy's version

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        max_new_tokens: int,
        top_p: float = 1.0,
        more: Iterable[Sequence[Request]] = (),
    ) -> Iterator[Decoded]:
        """See `Engine.generate`. Finished responses are reported after every step, or every few."""
        arrivals = Arrivals(requests, more)
        first = arrivals.take()
        most = 0 if arrivals.open else len(first)
        made: list[StaticSlots] = []

        def slots_with(room: int) -> StaticSlots:
            made.clear()
            made.append(self._slots(room, max_new_tokens, temperature, most))
            return made[0]

        room = max([0, *(room_of(request, max_new_tokens) for request in first.values())])
        batch: EagerSequences | StaticSequences
        if static := self._static and top_p == 1:
            batch = StaticSequences(self.policy, max_new_tokens, room, slots_with)
            slots = made[0].slots
        else:
            self._kept = None
            slots = self._count(room, max_new_tokens)
            batch = EagerSequences(self.policy, slots, temperature, max_new_tokens, top_p)
        batch.add(first)
        with self.policy.evaluating() as model, self._reordered(model, slots).used():
            while batch.unfinished or arrivals.open:
                while arrivals.open and batch.unfinished < slots:
                    batch.add(arrived := arrivals.take())
                    if not (arrived and static):  # a report of static steps is of several
                        break
                yield batch.advance() if batch.unfinished else Decoded((), 0)
        self._kept = made[0] if made else None

    def sleep(self) -> None:
        """Free caches, graphs and copies of weights."""
        self._kept = self._copies = None

    def _reordered(self, model: Any, rows: int) -> Reordered:
        """Return reordered weights of the policy. The canary's serve the stage, too."""
        version = self.policy.version
        if self._copies is None or self._copies[0] != version:
            self._copies = None  # frees its memory first
            self._copies = version, Reordered(model, rows)
        return self._copies[1]

    def _slots(self, room: int, limit: int, temperature: float, most: int) -> StaticSlots:
        """Return slots for sequences of `room` tokens, those of the last call if they serve.

        They are the caller's, who gives them back if nothing fails. If `most` is given, no more
        than so many sequences come.
        """
        kept, self._kept = self._kept, None
        room = rounded(room)
        enough = kept is not None and (kept.whole or kept.slots >= most > 0)
        if kept and enough and kept.serves(self.policy, room, limit, temperature):
            return kept
        del kept  # frees its memory before it is counted
        slots = self._count(room, limit)
        if self.policy.on_gpu and self._stream is None:
            self._stream = torch.cuda.Stream()
        count = min(most or slots, slots)
        made = StaticSlots(self.policy, count, room, limit, temperature, self._stream)
        made.whole = count == slots
        return made

    def _count(self, room: int, limit: int) -> int:
        """Return how many sequences of `room` tokens are decoded together."""
        if self.options.slots or not self.policy.on_gpu:
            return self.options.slots or slots_for(limit)
        return _fitting(self.policy, room, self._share)


def _fitting(policy: Policy, room: int, share: int) -> int:
    """Return how many sequences of `room` tokens the GPU's free memory holds.

    One of `share` engines has no more than its part, as the others may still be starting.
    """
    widths, model = widths_of(policy.model.config), policy.working()
    free, total = torch.cuda.mem_get_info(policy.device)
    allocated = torch.cuda.memory_allocated(policy.device)
    free += torch.cuda.memory_reserved(policy.device) - allocated
    free = min(free, total // share - allocated)
    kv_bytes = cache_bytes(widths, next(model.parameters()).itemsize)
    return slots_that_fit(free, room, kv_bytes, widths.vocabulary)


@torch.inference_mode()
def decode(
    policy: Policy, cache: SlotCache, token_A: torch.Tensor, response_A: np.ndarray
) -> torch.Tensor:
    """Feed one token to each of the first A slots and return the logits [A, V] that follow it.

    `response_A` is the token's index in its response, from 0.
    """
    place_A, model = cache.aim(response_A, policy.device), policy.working()
    with attending(model.config, ATTENTION):
        logits: torch.Tensor = model(
            input_ids=token_A[:, None],
            position_ids=place_A[:, None],
            use_cache=False,
            logits_to_keep=1,
            slots=cache,
        ).logits
    return logits[:, -1]


def forced(
    policy: Policy, prompts: Sequence[np.ndarray], ids_UT: torch.Tensor
) -> Iterator[torch.Tensor]:
    """Yield the logits [U, V] after each prompt, then after each of the tokens that follow it."""
    cache = SlotCache(len(prompts), split=policy.device.type == "cpu")
    prefilled = prefill(policy, prompts)
    for slot, (layers, _) in enumerate(prefilled):
        cache.begin(np.array([slot]), layers)
    yield torch.stack([logits_V for _, logits_V in prefilled])
    for t, token_U in enumerate(ids_UT.T):
        yield decode(policy, cache, token_U, np.full(len(prompts), t))


class EagerSequences:
    """The requests of one call of `generate` that wait or are active in a slot."""

    def __init__(
        self,
        policy: Policy,
        most: int,
        temperature: float,
        max_new_tokens: int,
        top_p: float,
    ) -> None:
        """Prepare for at most `most` sequences at once."""
        self.policy = policy
        self.most = most
        self.temperature = temperature
        self.limit = max_new_tokens
        self.top_p = top_p
        self.slots = 0
        self.cache = SlotCache(0, split=policy.device.type == "cpu")
        self.stop_ids = torch.tensor(policy.stop_ids, device=policy.device)
        self.waiting = Waiting(policy)
        self.active = 0
        # Bookkeeping is on the host, the data of the computation on the device.
        self.request_S = np.zeros(0, np.int64)
        self.length_S = np.zeros(0, np.int64)  # response tokens so far
        self.limit_S = np.zeros(0, np.int64)  # response tokens at most
        shape = (0, max_new_tokens)
        self.uniforms_ST = torch.zeros(shape, dtype=torch.float64, device=policy.device)
        self.ids_ST = torch.zeros(shape, dtype=torch.int64, device=policy.device)
        self.logprobs_ST = torch.zeros(shape, device=policy.device)

    @property
    def unfinished(self) -> int:
        return self.active + len(self.waiting)

    def add(self, requests: Mapping[int, Request]) -> None:
        """Let `requests` wait, too. There are never more slots than the requests could fill."""
        self.waiting.add(requests)
        added = min(self.most, self.unfinished) - self.slots
        if added <= 0:
            return
        self.slots += added
        self.cache.grow(self.slots)
        for name in ("request_S", "length_S", "limit_S"):
            setattr(self, name, np.pad(getattr(self, name), (0, added)))
        for name in ("uniforms_ST", "ids_ST", "logprobs_ST"):
            setattr(self, name, F.pad(getattr(self, name), (0, 0, 0, added)))

    @torch.inference_mode()
    def advance(self) -> Decoded:
        """Fill the free slots, then decode one token in every active slot.

        Return the responses that finished, and the response positions computed.
        """
        begun = self._admit()
        finished = self._take_finished() if begun else []  # ended by their first token
        if not self.active:
            return Decoded(finished, begun)
        rows = np.arange(self.active)
        fed_A = self.length_S[rows] - 1
        self._draw(rows, decode(self.policy, self.cache, self.ids_ST[rows, fed_A], fed_A))
        finished += self._take_finished()
        return Decoded(finished, begun + self.slots)

    def _admit(self) -> int:
        """Start waiting requests in the free slots and draw their first tokens.

        Return the number of requests that were started.
        """
        first = self.active
        for (layers, logits_V), begun in self.waiting.groups(self.slots - self.active):
            rows = np.arange(self.active, self.active + len(begun))
            self.request_S[rows] = [index for index, _ in begun]
            self.limit_S[rows] = [r.max_new_tokens or self.limit for _, r in begun]
            self.length_S[rows] = 0
            drawn = torch.from_numpy(uniforms([r.seed for _, r in begun], self.limit))
            self.uniforms_ST[rows] = drawn.to(self.policy.device)
            self.cache.begin(rows, layers)
            self._draw(rows, logits_V.expand(len(begun), -1))
            self.active += len(begun)
        return self.active - first

    def _draw(self, rows: np.ndarray, logits_AV: torch.Tensor) -> None:
        """Sample the next token of the slots `rows`."""
        place_A = self.length_S[rows]
        uniforms_A = self.uniforms_ST[rows, place_A]
        token_A, logprob_A = sample(logits_AV, self.temperature, uniforms_A, self.top_p)
        refuse_nan(logprob_A, self.policy)
        self.ids_ST[rows, place_A] = token_A
        self.logprobs_ST[rows, place_A] = logprob_A
        self.length_S[rows] += 1

    def _take_finished(self) -> list[tuple[int, Completion]]:
        """Return the finished responses; the last active slots move into the freed ones."""
        rows = np.arange(self.active)
        last_A = self.ids_ST[rows, self.length_S[rows] - 1]
        stopped_A = torch.isin(last_A, self.stop_ids).cpu().numpy()
        ended_A = stopped_A | (self.length_S[rows] == self.limit_S[rows])
        ended = np.flatnonzero(ended_A)
        if not len(ended):
            return []
        longest = int(self.length_S[ended].max())
        ids = self.ids_ST[ended, :longest].cpu().numpy().astype(np.int32)
        logprobs = self.logprobs_ST[ended, :longest].cpu().numpy()
        finished = []
        for row, slot in enumerate(ended):
            length = self.length_S[slot]
            reason = FinishReason.STOP if stopped_A[slot] else FinishReason.LENGTH
            completion = Completion(ids[row, :length].copy(), logprobs[row, :length].copy(), reason)
            finished.append((int(self.request_S[slot]), completion))
        self._close_gaps(ended_A)
        return finished

    def _close_gaps(self, ended_A: np.ndarray) -> None:
        remaining = self.active - int(ended_A.sum())
        gaps = np.flatnonzero(ended_A[:remaining])
        movers = remaining + np.flatnonzero(~ended_A[remaining:])
        self.active = remaining
        for host in (self.request_S, self.length_S, self.limit_S):
            host[gaps] = host[movers]
        if len(gaps):
            for device in (self.uniforms_ST, self.ids_ST, self.logprobs_ST):
                device[gaps] = device[movers]
        live = int(self.length_S[:remaining].max(initial=0))
        self.cache.compact(movers, gaps, remaining, live)
