"""Continuous batching over a Hugging Face model: a slot is refilled as soon as it is free.

The prompt that a group's responses share is computed once and stored once in the cache. Each step
decodes one token for every active slot. Active slots are always the first ones: if a response ends,
the last active slot moves into its place.

Suffixes: A active slots, S slots, T response tokens, U prompts, P prompt tokens (left-padded),
V vocabulary.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import DynamicCache

from mugrpo.config.engines import ContinuousOptions
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Arrivals, Completion, Decoded, Engine, Request
from mugrpo.engines.cache import ATTENTION, KeysValues, SlotCache, cache_argument, reordered
from mugrpo.engines.sampling import left_padded, refuse_nan, sample, uniforms
from mugrpo.model.attention import attending
from mugrpo.model.policy import Policy

# The model's output for a prompt: keys and values of each layer, both [H, P, D], and the logits [V]
# of the first response token.
Prefilled = tuple[list[KeysValues], torch.Tensor]

_PREFILL_TOKENS = 2048  # padded prompt tokens that go through the model together


class ContinuousEngine(Engine):
    """An engine that decodes in slots with the trainer's own model. A refresh costs nothing."""

    def __init__(self, policy: Policy, options: ContinuousOptions) -> None:
        self.policy = policy
        self.options = options

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        max_new_tokens: int,
        top_p: float = 1.0,
        more: Iterable[Sequence[Request]] = (),
    ) -> Iterator[Decoded]:
        """See `Engine.generate`. Finished responses are reported after every step."""
        arrivals = Arrivals(requests, more)
        batch = _Sequences(self.policy, self.options, temperature, max_new_tokens, top_p)
        batch.add(arrivals.take())
        rows = batch.slots or self.options.slots
        with self.policy.evaluating() as model, reordered(model, rows):
            while batch.unfinished or arrivals.open:
                if arrivals.open and batch.unfinished < self.options.slots:
                    batch.add(arrivals.take())
                yield batch.advance() if batch.unfinished else Decoded((), 0)


@torch.inference_mode()
def prefill(policy: Policy, prompts: Sequence[np.ndarray]) -> list[Prefilled]:
    """Return each prompt's keys and values in every layer, and the logits after its last token."""
    ids_UP, mask_UP = left_padded(prompts, policy)
    cache, model = DynamicCache(), policy.working()
    logits_UV = model(
        input_ids=ids_UP,
        attention_mask=mask_UP,
        position_ids=(mask_UP.cumsum(-1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
        **cache_argument(cache, model),
    ).logits[:, -1]
    cached: Any = cache.layers
    prefilled = []
    for row, prompt in enumerate(prompts):
        begin = ids_UP.shape[1] - len(prompt)
        layers = [(c.keys[row, :, begin:], c.values[row, :, begin:]) for c in cached]
        prefilled.append((layers, logits_UV[row]))
    return prefilled


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


class _Sequences:
    """The requests of one call of `generate` that wait or are active in a slot."""

    def __init__(
        self,
        policy: Policy,
        options: ContinuousOptions,
        temperature: float,
        max_new_tokens: int,
        top_p: float,
    ) -> None:
        self.policy = policy
        self.options = options
        self.temperature = temperature
        self.limit = max_new_tokens
        self.top_p = top_p
        self.slots = 0
        self.cache = SlotCache(0, split=policy.device.type == "cpu")
        self.stop_ids = torch.tensor(policy.stop_ids, device=policy.device)
        self.waiting: deque[tuple[int, Request]] = deque()  # with their indices
        self.active = 0
        self.ready: dict[bytes, Prefilled] = {}  # prompts of waiting requests
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
        self.waiting.extend(requests.items())
        added = min(self.options.slots, self.unfinished) - self.slots
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
        while self.active < self.slots and (key := self._next_prompt()):
            if key not in self.ready:
                self._prefill()
            begun: list[tuple[int, Request]] = []
            while self.active + len(begun) < self.slots and self._next_prompt() == key:
                begun.append(self.waiting.popleft())
            rows = np.arange(self.active, self.active + len(begun))
            self.request_S[rows] = [index for index, _ in begun]
            self.limit_S[rows] = [r.max_new_tokens or self.limit for _, r in begun]
            self.length_S[rows] = 0
            drawn = torch.from_numpy(uniforms([r.seed for _, r in begun], self.limit))
            self.uniforms_ST[rows] = drawn.to(self.policy.device)
            layers, logits_V = self.ready[key]
            self.cache.begin(rows, layers)
            self._draw(rows, logits_V.expand(len(begun), -1))
            self.active += len(begun)
            if self._next_prompt() != key:
                del self.ready[key]
        return self.active - first

    def _next_prompt(self) -> bytes | None:
        """Return the bytes of the prompt of the request that waits longest, if any waits."""
        return self.waiting[0][1].prompt_ids.tobytes() if self.waiting else None

    def _prefill(self) -> None:
        """Prefill the next waiting prompts, as many as fit in `_PREFILL_TOKENS` with padding.

        At least one prompt is computed, however long.
        """
        chosen: dict[bytes, np.ndarray] = {}
        longest = 0
        for _, request in self.waiting:
            key = request.prompt_ids.tobytes()
            if key in self.ready or key in chosen:
                continue
            longest = max(longest, len(request.prompt_ids))
            if chosen and longest * (len(chosen) + 1) > _PREFILL_TOKENS:
                break
            chosen[key] = request.prompt_ids
        prefilled = prefill(self.policy, list(chosen.values()))
        self.ready.update(zip(chosen, prefilled, strict=True))

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
