"""Can a model be decoded in slots?"""

from __future__ import annotations

import numpy as np
import torch

from mugrpo.engines.cache import SlotCache
from mugrpo.engines.continuous import decode, prefill
from mugrpo.model.policy import Policy

_PROBE_TOLERANCE = 0.05  # relative to the largest logit; bf16 stays well below it


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
