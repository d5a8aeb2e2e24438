"""The Hugging Face engine: the trainer's own model, sampled in the simplest way.

Suffixes: B responses, P prompt tokens (left-padded), L tokens so far, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, StaticCache

from mugrpo.config.engines import HFOptions
from mugrpo.disk.publishing import failpoint
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Arrivals, Completion, Decoded, Engine, Request
from mugrpo.engines.cache import cache_argument
from mugrpo.engines.sampling import left_padded, refuse_nan, sample, uniforms
from mugrpo.model.policy import Policy


class HFEngine(Engine):
    """An engine that samples in static batches with a key-value cache.

    It shares the trainer's model, so a refresh loads nothing.
    """

    def __init__(self, policy: Policy, options: HFOptions) -> None:
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
        """See `Engine.generate`. A batch runs until its longest response ends."""
        arrivals, size = Arrivals(requests, more), self.options.slots
        while arrivals.open:
            taken = list(arrivals.take().items())
            if not taken and arrivals.open:
                yield Decoded((), 0)
            for start in range(0, len(taken), size):
                failpoint("engine batch")
                numbers, batch = zip(*taken[start : start + size], strict=True)
                limits = [r.max_new_tokens or max_new_tokens for r in batch]
                completions = self._batch(batch, temperature, limits, top_p)
                slots = len(completions) * max(len(completion.ids) for completion in completions)
                yield Decoded(list(zip(numbers, completions, strict=True)), slots)

    @torch.inference_mode()
    def _batch(
        self, requests: Sequence[Request], temperature: float, limits: Sequence[int], top_p: float
    ) -> list[Completion]:
        policy, steps = self.policy, max(limits)
        stop_ids = torch.tensor(policy.stop_ids, device=policy.device)
        uniforms_BT = torch.from_numpy(uniforms([r.seed for r in requests], steps))
        uniforms_BT = uniforms_BT.to(policy.device)
        limit_B = torch.tensor(limits, device=policy.device)
        finished_B = torch.zeros(len(requests), dtype=torch.bool, device=policy.device)
        drawn: list[tuple[torch.Tensor, torch.Tensor]] = []
        decoding = _Decoding(policy, [r.prompt_ids for r in requests], steps)
        with policy.evaluating() as model:
            while not finished_B.all():
                t, logits_BV = len(drawn), decoding.step(model)
                token_B, logprob_B = sample(logits_BV, temperature, uniforms_BT[:, t], top_p)
                refuse_nan(logprob_B, policy)
                drawn.append((token_B, logprob_B))
                finished_B |= torch.isin(token_B, stop_ids) | (limit_B == t + 1)
                decoding.append(token_B)
        ids_BT, logprobs_BT = (torch.stack(column, -1) for column in zip(*drawn, strict=True))
        return self._completions(ids_BT, logprobs_BT, limits)

    def _completions(
        self, ids_BT: torch.Tensor, logprobs_BT: torch.Tensor, limits: Sequence[int]
    ) -> list[Completion]:
        """Return each row, cut after its first stop id. A row without one was truncated."""
        ids, logprobs = ids_BT.cpu().numpy().astype(np.int32), logprobs_BT.cpu().numpy()
        completions = []
        for row, limit in enumerate(limits):
            stops = np.flatnonzero(np.isin(ids[row, :limit], self.policy.stop_ids))
            length = int(stops[0]) + 1 if len(stops) else limit
            reason = FinishReason.STOP if len(stops) else FinishReason.LENGTH
            completions.append(
                Completion(ids[row, :length].copy(), logprobs[row, :length].copy(), reason)
            )
        return completions


class _Decoding:
    """A batch of rows that grow by a token with each step, and their cache."""

    def __init__(self, policy: Policy, prompts: Sequence[np.ndarray], steps: int) -> None:
        """Begin with `prompts`, each followed by up to `steps` tokens."""
        self._ids, self._mask_BL = left_padded(prompts, policy)
        self._positions = (self._mask_BL.cumsum(-1) - 1).clamp(min=0)
        self._cache = _cache(policy.model.config, self._mask_BL.shape[1] + steps)

    def step(self, model: Any) -> torch.Tensor:
        """Return the logits [B, V] after the last token of each row."""
        logits: torch.Tensor = model(
            input_ids=self._ids,
            attention_mask=self._mask_BL,
            position_ids=self._positions,
            use_cache=True,
            logits_to_keep=1,
            **cache_argument(self._cache, model),
        ).logits
        return logits[:, -1]

    def append(self, token_B: torch.Tensor) -> None:
        """Let each row go on with its token."""
        self._ids = token_B[:, None]
        self._mask_BL = torch.cat([self._mask_BL, torch.ones_like(self._ids)], -1)
        self._positions = self._positions[:, -1:] + 1


@torch.inference_mode()
def forced(
    policy: Policy, prompts: Sequence[np.ndarray], ids_BT: torch.Tensor
) -> Iterator[torch.Tensor]:
    """Yield the logits [B, V] after each prompt, then after each of the tokens that follow it."""
    decoding = _Decoding(policy, prompts, ids_BT.shape[1])
    yield decoding.step(policy.working())
    for token_B in ids_BT.T:
        decoding.append(token_B)
        yield decoding.step(policy.working())


# Their attention adds a bias per key of the mask (ALiBi), and a static cache has more keys.
_BIASED = ("bloom", "mpt")


def _cache(config: Any, length: int) -> Any:
    """Return a cache for `length` tokens, which a model that needs it lets grow instead."""
    if getattr(config, "alibi", config.model_type in _BIASED):
        return DynamicCache(config=config)
    return StaticCache(config=config, max_cache_len=length)
