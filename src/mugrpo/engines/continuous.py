"""Continuous batching over a Hugging Face model: a slot is refilled as soon as it is free.

The prompt that a group's responses share is computed once and stored once in the cache. Each step
decodes one token for every active slot. Active slots are always the first ones: if a response ends,
the last active slot moves into its place.

Suffixes: A active slots, S slots, T response tokens, U prompts, P prompt tokens (left-padded),
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from mugrpo.config.engines import ContinuousOptions
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Completion, Decoded, Request, SharedModel
from mugrpo.engines.cache import ATTENTION, KeysValues, SlotCache
from mugrpo.engines.reordered import reordered
from mugrpo.engines.sampling import refuse_nan, sample, uniforms
from mugrpo.model.attention import attending
from mugrpo.model.policy import Policy

_PROBE_TOLERANCE = 0.05  # relative to the largest logit; bf16 stays well below it


@dataclass(frozen=True)
class Prefilled:
    """The model's output for a prompt."""

    layers: list[KeysValues]  # both [H, P, D]
    logits: torch.Tensor  # [V], for the first response token


class ContinuousEngine(SharedModel):
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
    ) -> Iterator[Decoded]:
        """See `Engine.generate`. Finished responses are reported after every step."""
        batch = _Sequences(self.policy, self.options, requests, temperature, max_new_tokens, top_p)
        with self.policy.evaluating() as model, reordered(model, batch.slots):
            while batch.busy:
                yield batch.advance()


def unfit(policy: Policy) -> str | None:
    """Return why the model cannot be decoded in slots, or None if it can.

    Decode two short sequences and compare their logits with those of a plain forward pass.
    """
    prompts = [np.arange(length, dtype=np.int32) % policy.vocab_size for length in (3, 5)]
    cache = SlotCache(2)
    try:
        with policy.evaluating() as model, torch.inference_mode():
            for row, prompt in enumerate(prefill(policy, prompts)):
                cache.begin(np.array([row]), prompt.layers)
            tokens = torch.tensor([1, 2], device=policy.device) % policy.vocab_size
            slots_AV = decode(policy, cache, tokens, np.array([0, 0]))
            for row, prompt_ids in enumerate(prompts):
                ids = [*prompt_ids.tolist(), int(tokens[row])]
                plain = model(torch.tensor([ids], device=policy.device), use_cache=False)
                gap = (plain.logits[0, -1] - slots_AV[row]).abs().max().item()
                if not gap <= _PROBE_TOLERANCE * plain.logits[0, -1].abs().max().item():
                    return f"its logits are {gap:.2g} off"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


@torch.inference_mode()
def prefill(policy: Policy, prompts: Sequence[np.ndarray]) -> list[Prefilled]:
    """Return each prompt's keys and values in every layer, and the logits after its last token."""
    longest = max(map(len, prompts))
    ids_UP = np.full((len(prompts), longest), policy.pad_id, np.int64)
    mask_UP = np.zeros((len(prompts), longest), np.int64)
    for row, prompt in enumerate(prompts):
        ids_UP[row, longest - len(prompt) :] = prompt
        mask_UP[row, longest - len(prompt) :] = 1
    mask = torch.from_numpy(mask_UP).to(policy.device)
    cache = DynamicCache()
    logits_UV = policy.working()(
        input_ids=torch.from_numpy(ids_UP).to(policy.device),
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    cached: Any = cache.layers
    prefilled = []
    for row, prompt in enumerate(prompts):
        begin = longest - len(prompt)
        layers = [(c.keys[row, :, begin:], c.values[row, :, begin:]) for c in cached]
        prefilled.append(Prefilled(layers, logits_UV[row]))
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


class _Sequences:
    """All requests of one call of `generate`: waiting, active in a slot, or finished."""

    def __init__(
        self,
        policy: Policy,
        options: ContinuousOptions,
        requests: Sequence[Request],
        temperature: float,
        max_new_tokens: int,
        top_p: float,
    ) -> None:
        self.policy = policy
        self.prefill_tokens = options.prefill_tokens
        self.requests = requests
        self.temperature = temperature
        self.limit = max_new_tokens
        self.top_p = top_p
        self.slots = min(options.slots, len(requests))
        self.cache = SlotCache(self.slots)
        self.stop_ids = torch.tensor(policy.stop_ids, device=policy.device)
        self.next = 0  # the first waiting request
        self.active = 0
        self.ready: dict[bytes, Prefilled] = {}  # prompts of waiting requests
        # Bookkeeping is on the host, the data of the computation on the device.
        self.request_S = np.zeros(self.slots, np.int64)
        self.length_S = np.zeros(self.slots, np.int64)  # response tokens so far
        shape = (self.slots, max_new_tokens)
        self.uniforms_ST = torch.zeros(shape, dtype=torch.float64, device=policy.device)
        self.ids_ST = torch.zeros(shape, dtype=torch.int64, device=policy.device)
        self.logprobs_ST = torch.zeros(shape, device=policy.device)

    @property
    def busy(self) -> bool:
        return self.active > 0 or self.next < len(self.requests)

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
        while self.active < self.slots and self.next < len(self.requests):
            request = self.requests[self.next]
            key = request.prompt_ids.tobytes()
            if key not in self.ready:
                self._prefill()
            count = 1
            room = min(self.slots - self.active, len(self.requests) - self.next)
            while count < room and self.requests[self.next + count].prompt_ids.tobytes() == key:
                count += 1
            rows = np.arange(self.active, self.active + count)
            self.request_S[rows] = np.arange(self.next, self.next + count)
            self.length_S[rows] = 0
            seeds = [r.seed for r in self.requests[self.next : self.next + count]]
            drawn = torch.from_numpy(uniforms(seeds, self.limit))
            self.uniforms_ST[rows] = drawn.to(self.policy.device)
            self.cache.begin(rows, self.ready[key].layers)
            self._draw(rows, self.ready[key].logits.expand(count, -1))
            self.active += count
            self.next += count
            exhausted = self.next == len(self.requests)
            if exhausted or self.requests[self.next].prompt_ids.tobytes() != key:
                del self.ready[key]
        return self.active - first

    def _prefill(self) -> None:
        """Prefill the next waiting prompts, as many as fit in `prefill_tokens` with padding.

        At least one prompt is computed, however long.
        """
        chosen: dict[bytes, np.ndarray] = {}
        longest = 0
        for request in self.requests[self.next :]:
            key = request.prompt_ids.tobytes()
            if key in self.ready or key in chosen:
                continue
            longest = max(longest, len(request.prompt_ids))
            if chosen and longest * (len(chosen) + 1) > self.prefill_tokens:
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
        ended_A = stopped_A | (self.length_S[rows] == self.limit)
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
        for host in (self.request_S, self.length_S):
            host[gaps] = host[movers]
        if len(gaps):
            for device in (self.uniforms_ST, self.ids_ST, self.logprobs_ST):
                device[gaps] = device[movers]
        live = int(self.length_S[:remaining].max(initial=0))
        self.cache.close(movers, gaps, remaining, live)
