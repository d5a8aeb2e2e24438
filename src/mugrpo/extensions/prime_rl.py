"""A method as a custom loss of prime-rl. 1 response (a sample of prime-rl's), T tokens with prompt.

The classes are those of prime_rl/trainer/rl/loss.py at 559b447. The page is prime_rl.md.
"""

import json
from functools import lru_cache
from typing import Any

from mugrpo.extensions.token_weights import Method, of_responses


def loss(inputs: Any, method: str, **options: Any) -> Any:
    """Return the LossOutputs of a sample: its summed loss, and the metrics' means over its tokens.

    `inputs` is prime-rl's LossInputs, with tensors [T]; `method` and `options` come from the
    config's `trainer.loss.kwargs`: objective = {negative_weight = 0.5}. Raises ValueError if there
    is no such method or option, or if the method is no weight on a token.
    """
    from prime_rl.trainer.rl.loss import LossOutputs

    mask_1T = inputs.loss_mask[None]
    advantages_1 = of_responses(inputs.advantages[None], mask_1T)
    logprobs_1T, behavior_1T = inputs.trainer_logprobs[None], inputs.inference_logprobs[None]
    weights_1T, metrics = _method(method, json.dumps(options, sort_keys=True)).weights(
        logprobs_1T, behavior_1T, advantages_1, mask_1T
    )
    if inputs.loss_weights is not None:
        weights_1T = weights_1T * inputs.loss_weights
    tokens = mask_1T.sum().clamp(min=1)
    means = {key: values.sum() / tokens for key, values in metrics.items()}
    return LossOutputs(loss=-(weights_1T * logprobs_1T)[mask_1T].sum(), metrics=means)


@lru_cache
def _method(name: str, options: str) -> Method:
    """Return the method. It is cached, because prime-rl asks for the loss of each sample."""
    return Method.named(name, json.loads(options))
