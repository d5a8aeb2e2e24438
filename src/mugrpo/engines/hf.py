"""The Hugging Face engine: the trainer's own model, sampled in the simplest way.

Suffixes: B responses, P prompt tokens (left-padded), L tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import StaticCache

from mugrpo.config.engines import HFOptions
from mugrpo.disk.publishing import passing
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Completion, Decoded, Request, SharedModel
from mugrpo.engines.cache import cache_argument
from mugrpo.engines.sampling import refuse_nan, sample, uniforms
from mugrpo.model.policy import Policy


class HFEngine(SharedModel):
    """An engine that samples in static batches with a key-value cache.

    It shares the trainer's model, so a refresh costs nothing.
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
    ) -> Iterator[Decoded]:
        """See `Engine.generate`. A batch runs until its longest response ends."""
        size = self.options.slots
        for start in range(0, len(requests), size):
            passing("engine batch")
            batch = requests[start : start + size]
            limits = [r.max_new_tokens or max_new_tokens for r in batch]
            completions = self._batch(batch, temperature, limits, top_p)
            slots = len(completions) * max(len(completion.ids) for completion in completions)
            yield Decoded(list(enumerate(completions, start)), slots)

    @torch.inference_mode()
    def _batch(
        self, requests: Sequence[Request], temperature: float, limits: Sequence[int], top_p: float
    ) -> list[Completion]:
        policy, device, max_new_tokens = self.policy, self.policy.device, max(limits)
        longest = max(len(r.prompt_ids) for r in requests)
        ids_BP = np.full((len(requests), longest), policy.pad_id, np.int64)
        mask_BP = np.zeros((len(requests), longest), np.int64)
        for row, request in enumerate(requests):
            ids_BP[row, longest - len(request.prompt_ids) :] = request.prompt_ids
            mask_BP[row, longest - len(request.prompt_ids) :] = 1
        step_ids = torch.from_numpy(ids_BP).to(device)
        mask_BL = torch.from_numpy(mask_BP).to(device)
        position_ids = (mask_BL.cumsum(-1) - 1).clamp(min=0)
        stop_ids = torch.tensor(policy.stop_ids, device=device)
        uniforms_BT = torch.from_numpy(uniforms([r.seed for r in requests], max_new_tokens))
        uniforms_BT = uniforms_BT.to(device)
        finished_B = torch.zeros(len(requests), dtype=torch.bool, device=device)
        limit_B = torch.tensor(limits, device=device)
        tokens, logprobs = [], []
        with policy.evaluating() as model:
            cache = StaticCache(config=model.config, max_cache_len=longest + max_new_tokens)
            held = cache_argument(cache, model)
            for t in range(max_new_tokens):
                logits_BV = model(
                    input_ids=step_ids,
                    attention_mask=mask_BL,
                    position_ids=position_ids,
                    use_cache=True,
                    logits_to_keep=1,
                    **held,
                ).logits[:, -1]
                token_B, logprob_B = sample(logits_BV, temperature, uniforms_BT[:, t], top_p)
                refuse_nan(logprob_B, policy)
                tokens.append(token_B)
                logprobs.append(logprob_B)
                finished_B |= torch.isin(token_B, stop_ids) | (limit_B == t + 1)
                if finished_B.all():
                    break
                step_ids = token_B[:, None]
                mask_BL = torch.cat([mask_BL, mask_BL.new_ones(len(requests), 1)], -1)
                position_ids = position_ids[:, -1:] + 1
        return self._completions(torch.stack(tokens, -1), torch.stack(logprobs, -1), limits)

    def _completions(
        self, ids_BT: torch.Tensor, logprobs_BT: torch.Tensor, limits: Sequence[int]
    ) -> list[Completion]:
        """Return each row, cut after its first stop id. A row without one was truncated."""
        ids, logprobs = ids_BT.cpu().numpy().astype(np.int32), logprobs_BT.cpu().numpy()
        stops = np.isin(ids, self.policy.stop_ids)
        completions = []
        for row, limit in enumerate(limits):
            stop = stops[row, :limit]
            stopped = bool(stop.any())
            length = int(stop.argmax()) + 1 if stopped else limit
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            completions.append(
                Completion(ids[row, :length].copy(), logprobs[row, :length].copy(), reason)
            )
        return completions
