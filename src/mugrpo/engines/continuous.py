"""Continuous batching over a Hugging Face model: a slot is filled again as soon as it is free.

The prompt that a group's responses share goes through the model once, and is kept once in the
cache. A step decodes one token of every active slot. Active slots are always the first ones: where
one ends, the last takes its place.

Suffixes: A active slots, S slots, T response tokens, U prompts, P prompt tokens (left-padded),
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

_PROBE_TOLERANCE = 0.05  # of logits: another model is far off, bf16 is within


@dataclass(frozen=True)
class Prefilled:
    """A prompt that went through the model."""

    layers: list[KeysValues]  # [H, P, D] both
    logits: torch.Tensor  # [V], of the first response token


class ContinuousEngine(SharedModel):
    """Samples with the trainer's own model; a refresh costs nothing."""

    def __init__(self, policy: Policy, options: ContinuousOptions) -> None:
        self.policy = policy
        self.options = options

    def generate(
        self, requests: Sequence[Request], *, temperature: float, max_new_tokens: int
    ) -> Iterator[Decoded]:
        """See `Engine.generate`; what is finished is handed over at every step."""
        batch = _Sequences(self.policy, self.options, requests, temperature, max_new_tokens)
        with _evaluating(self.policy), reordered(self.policy, batch.slots):
            while batch.busy:
                yield batch.advance()


def unfit(policy: Policy) -> str | None:
    """Why the model cannot be decoded in slots, or None: two short sequences are tried.

    Their logits are held against those of a plain forward pass.
    """
    prompts = [np.arange(length, dtype=np.int32) % policy.vocab_size for length in (3, 5)]
    cache = SlotCache(2)
    try:
        with _evaluating(policy), torch.inference_mode():
            for row, prompt in enumerate(prefill(policy, prompts)):
                cache.begin(np.array([row]), prompt.layers)
            tokens = torch.tensor([1, 2], device=policy.device) % policy.vocab_size
            slots_AV = decode(policy, cache, tokens, np.array([0, 0]))
            for row, prompt_ids in enumerate(prompts):
                ids = [*prompt_ids.tolist(), int(tokens[row])]
                with policy.autocast():
                    plain = policy.model(torch.tensor([ids], device=policy.device), use_cache=False)
                gap = (plain.logits[0, -1] - slots_AV[row]).abs().max().item()
                if not gap <= _PROBE_TOLERANCE * plain.logits[0, -1].abs().max().item():
                    return f"its logits are {gap:.2g} off"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


@contextmanager
def _evaluating(policy: Policy) -> Iterator[None]:
    """Gradient checkpointing, which is on in training only, would refuse the cache."""
    was_training = policy.model.training
    policy.model.eval()
    try:
        yield
    finally:
        policy.model.train(was_training)


@torch.inference_mode()
def prefill(policy: Policy, prompts: Sequence[np.ndarray]) -> list[Prefilled]:
    """Each prompt's keys and values in every layer, and the logits behind it."""
    longest = max(map(len, prompts))
    ids_UP = np.full((len(prompts), longest), policy.pad_id, np.int64)
    mask_UP = np.zeros((len(prompts), longest), np.int64)
    for row, prompt in enumerate(prompts):
        ids_UP[row, longest - len(prompt) :] = prompt
        mask_UP[row, longest - len(prompt) :] = 1
    mask = torch.from_numpy(mask_UP).to(policy.device)
    cache = DynamicCache()
    with policy.autocast():
        logits_UV = policy.model(
            input_ids=torch.from_numpy(ids_UP).to(policy.device),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
    filled: Any = cache.layers
    made = []
    for row, prompt in enumerate(prompts):
        begin = longest - len(prompt)
        layers = [(kept.keys[row, :, begin:], kept.values[row, :, begin:]) for kept in filled]
        made.append(Prefilled(layers, logits_UV[row]))
    return made


@torch.inference_mode()
def decode(
    policy: Policy, cache: SlotCache, token_A: torch.Tensor, response_A: np.ndarray
) -> torch.Tensor:
    """The logits [A, V] behind a further token of each of the first A slots.

    `response_A` says which of its response's tokens it is, from 0.
    """
    place_A = cache.aim(response_A, policy.device)
    with policy.autocast(), attending(policy.model.config, ATTENTION):
        logits: torch.Tensor = policy.model(
            input_ids=token_A[:, None],
            position_ids=place_A[:, None],
            use_cache=False,
            logits_to_keep=1,
            slots=cache,
        ).logits
    return logits[:, -1]


class _Sequences:
    """The requests: waiting, active or finished."""

    def __init__(
        self,
        policy: Policy,
        options: ContinuousOptions,
        requests: Sequence[Request],
        temperature: float,
        max_new_tokens: int,
    ) -> None:
        self.policy = policy
        self.prefill_tokens = options.prefill_tokens
        self.requests = requests
        self.temperature = temperature
        self.limit = max_new_tokens
        self.slots = min(options.slots, len(requests))
        self.cache = SlotCache(self.slots)
        self.stop_ids = torch.tensor(policy.stop_ids, device=policy.device)
        self.next = 0  # the first request that waits
        self.active = 0
        self.ready: dict[bytes, Prefilled] = {}  # prompts of waiting requests
        # What steers is on the host, what is computed with on the device.
        self.request_S = np.zeros(self.slots, np.int64)
        self.made_S = np.zeros(self.slots, np.int64)  # response tokens so far
        shape = (self.slots, max_new_tokens)
        self.uniforms_ST = torch.zeros(shape, dtype=torch.float64, device=policy.device)
        self.ids_ST = torch.zeros(shape, dtype=torch.int64, device=policy.device)
        self.logprobs_ST = torch.zeros(shape, device=policy.device)

    @property
    def busy(self) -> bool:
        return self.active > 0 or self.next < len(self.requests)

    @torch.inference_mode()
    def advance(self) -> Decoded:
        """Fill the free slots, then decode one token of every active one."""
        begun = self._admit()
        finished = self._take_finished() if begun else []  # by their first token
        if not self.active:
            return Decoded(finished, begun)
        rows = np.arange(self.active)
        fed_A = self.made_S[rows] - 1
        self._draw(rows, decode(self.policy, self.cache, self.ids_ST[rows, fed_A], fed_A))
        finished += self._take_finished()
        return Decoded(finished, begun + self.slots)

    def _admit(self) -> int:
        """Begin waiting requests in the free slots, and draw their first tokens."""
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
            self.made_S[rows] = 0
            seeds = [r.seed for r in self.requests[self.next : self.next + count]]
            drawn = torch.from_numpy(uniforms(seeds, self.limit))
            self.uniforms_ST[rows] = drawn.to(self.policy.device)
            self.cache.begin(rows, self.ready[key].layers)
            self._draw(rows, self.ready[key].logits.expand(count, -1))
            self.active += count
            self.next += count
            done = self.next == len(self.requests)
            if done or self.requests[self.next].prompt_ids.tobytes() != key:
                del self.ready[key]
        return self.active - first

    def _prefill(self) -> None:
        """Take the next waiting prompts through the model, as many as go together."""
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
        made = prefill(self.policy, list(chosen.values()))
        self.ready.update(zip(chosen, made, strict=True))

    def _draw(self, rows: np.ndarray, logits_AV: torch.Tensor) -> None:
        """The next token of the slots `rows`."""
        made = self.made_S[rows]
        token_A, logprob_A = sample(logits_AV, self.temperature, self.uniforms_ST[rows, made])
        refuse_nan(logprob_A, self.policy)
        self.ids_ST[rows, made] = token_A
        self.logprobs_ST[rows, made] = logprob_A
        self.made_S[rows] += 1

    def _take_finished(self) -> list[tuple[int, Completion]]:
        """The active slots that have ended; the last ones move into their places."""
        rows = np.arange(self.active)
        last_A = self.ids_ST[rows, self.made_S[rows] - 1]
        stopped_A = torch.isin(last_A, self.stop_ids).cpu().numpy()
        ended_A = stopped_A | (self.made_S[rows] == self.limit)
        ended = np.flatnonzero(ended_A)
        if not len(ended):
            return []
        longest = int(self.made_S[ended].max())
        ids = self.ids_ST[ended, :longest].cpu().numpy().astype(np.int32)
        logprobs = self.logprobs_ST[ended, :longest].cpu().numpy()
        finished = []
        for row, slot in enumerate(ended):
            length = self.made_S[slot]
            reason = FinishReason.STOP if stopped_A[slot] else FinishReason.LENGTH
            completion = Completion(ids[row, :length].copy(), logprobs[row, :length].copy(), reason)
            finished.append((int(self.request_S[slot]), completion))
        self._close_gaps(ended_A)
        return finished

    def _close_gaps(self, ended_A: np.ndarray) -> None:
        left = self.active - int(ended_A.sum())
        gaps = np.flatnonzero(ended_A[:left])
        movers = left + np.flatnonzero(~ended_A[left:])
        self.active = left
        for host in (self.request_S, self.made_S):
            host[gaps] = host[movers]
        if len(gaps):
            for device in (self.uniforms_ST, self.ids_ST, self.logprobs_ST):
                device[gaps] = device[movers]
        live = int(self.made_S[:left].max(initial=0))
        self.cache.close(movers, gaps, left, live)
