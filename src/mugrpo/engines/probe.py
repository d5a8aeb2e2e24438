"""Can a model be decoded in slots? Suffixes: T decoded tokens, K likely tokens, V vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mugrpo.engines.cache import SlotCache
from mugrpo.engines.continuous import decode, prefill
from mugrpo.model.policy import Policy

# Text as users have it, with sums and letters for the embedded models, whose tokenizers know
# nothing else. On ids without a meaning, Qwen2.5 has activations that drown its logits in bf16.
_TEXTS = (
    "What is 3+2-1? Answer with a number. 3+2=5,5-1=4",
    "Which letters has the word bed? Name them in order, please. bed:bde",
)
_DECODED = 4  # the last tokens of each text
_LIKELY = 5  # an unlikely token's logprob is far off in bf16, and matters to nobody
_FLOOR = 0.01  # of the error in fp32: it was 1e-5, and 0.3 with positions that are off by one
_FACTOR = 2.0  # bf16: the error was 0.8 to 1.1 times that of a plain pass, 5 with such positions


def unfit(policy: Policy) -> str | None:
    """Return why the model cannot be decoded in slots, or None if it can.

    Decode the ends of two texts, and compare the logprobs of likely tokens with those of a plain
    forward pass in fp32. In bf16 they may be off as those of a plain pass in bf16 are, by `_FACTOR`
    at most.
    """
    texts = [_ids(policy, text) for text in _TEXTS]
    prompts = [ids[:-_DECODED] for ids in texts]
    cache = SlotCache(len(texts), split=policy.device.type == "cpu")
    decoded = []
    try:
        with policy.evaluating() as model, torch.inference_mode():
            for row, prompt in enumerate(prefill(policy, prompts)):
                cache.begin(np.array([row]), prompt.layers)
            for step in range(_DECODED):
                fed = torch.tensor([ids[step - _DECODED] for ids in texts], device=policy.device)
                decoded.append(decode(policy, cache, fed, np.full(len(texts), step)))
            errors = []
            for row, ids in enumerate(texts):
                plain_TV = exact_TV = _logprobs(_plain(model, ids))
                if model is not policy.model:  # that has the weights in fp32
                    exact_TV = _logprobs(_plain(policy.model, ids))
                slots_TV = _logprobs(torch.stack([logits_AV[row] for logits_AV in decoded]))
                likely_TK = exact_TV.topk(min(_LIKELY, policy.vocab_size)).indices
                both_TV = torch.stack([slots_TV, plain_TV]) - exact_TV
                errors.append(both_TV.gather(-1, likely_TK.expand(2, -1, -1)))
        slots, plain = torch.stack(errors, 1).flatten(1).square().mean(-1).sqrt().tolist()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    if slots <= _FACTOR * plain + _FLOOR:  # not if either is NaN
        return None
    return f"its logprobs are {slots:.2g} off, those of a plain pass {plain:.2g}"


def _ids(policy: Policy, text: str) -> np.ndarray:
    """Return the ids of `text`, without unknown characters; any ids if too few are left."""
    known = [i for i in policy.tokenizer(text)["input_ids"] if i != policy.pad_id]
    if len(known) <= _DECODED:
        known = list(range(2 * _DECODED))
    return np.array(known, np.int32) % policy.vocab_size


def _plain(model: Any, ids: np.ndarray) -> torch.Tensor:
    """Return the logits [T, V] after each of the last tokens of `ids`."""
    input_ids = torch.from_numpy(ids)[None].to(model.device)
    logits: torch.Tensor = model(input_ids, use_cache=False, logits_to_keep=_DECODED).logits[0]
    return logits


def _logprobs(logits_TV: torch.Tensor) -> torch.Tensor:
    return logits_TV.float().log_softmax(-1)
