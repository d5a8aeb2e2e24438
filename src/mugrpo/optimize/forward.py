"""The forward pass of training: logprobs of a micro-batch, or of stored rollouts.

Suffixes: B responses, L prompt and response tokens, T response tokens.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Rollout
from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.policy import Policy
from mugrpo.model.self_test import can_share_prompts
from mugrpo.optimize.balance import Price, rounds
from mugrpo.optimize.batching import MicroBatch, collate
from mugrpo.optimize.budget import TokenBudget, computing
from mugrpo.optimize.experience import Responses
from mugrpo.optimize.fsdp import release

# Tokens whose logits exist at once: 620 MB in fp32 with a vocabulary of 152,000.
LOGPROB_CHUNK = 1024


def batch_logprobs(
    policy: Policy, batch: MicroBatch, config: RunConfig, *, compiled: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logprobs and entropy of the batch's sampled tokens under `policy`, both [B, T].

    Both are in nats, of softmax(logits / temperature) with the config's temperature, and 0 where
    the batch's mask is false. Only logprobs have a gradient. `compiled` is `response_logprobs`'s.
    """
    return logprobs_function(policy)(
        batch.ids,
        batch.prompt_lengths,
        batch.chosen,
        batch.prompts,
        temperature=config.rollouts.temperature,
        chunk=LOGPROB_CHUNK,
        kernel=policy.kernel,
        compiled=compiled,
        steps_BT=batch.steps,
    )


def logprobs_function(policy: Policy) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return what computes logprobs and entropy under `policy`, see `response_logprobs`."""
    return policy.compute or partial(response_logprobs, policy.working())


def shares_prompts(policy: Policy) -> bool:
    """Return whether responses may share their prompt. The model is tested only once."""
    if policy.can_share_prompts is None:
        policy.can_share_prompts = can_share_prompts(policy.model)
    return policy.can_share_prompts


def rounds_of(
    policy: Policy, rollouts: Sequence[Rollout], tokens: int, share: bool
) -> list[list[int]]:
    """Return the micro-batches of the policy's ranks, see `balance.rounds`.

    The first rank cuts for all, as many ranks on a machine would slow each other down. All ranks
    must call this.
    """
    ranks, parts = policy.ranks, None
    if ranks.first:
        price = Price.of(policy.model) if ranks.size > 1 else Price()
        parts = rounds(rollouts, tokens, share=share, ranks=ranks.size, price=price)
    return ranks.from_first(parts)


@torch.no_grad()
def rollout_logprobs(
    policy: Policy,
    rollouts: Sequence[Rollout],
    config: RunConfig,
    budget: TokenBudget | None = None,
    check: Callable[[], None] = lambda: None,
) -> list[NDArray[np.float32]]:
    """Return the logprobs [T] of each rollout's response under `policy`, in order.

    Those of tokens that the policy did not sample are 0. The ranks that share a policy all make the
    same call, and share the work. `check` is called before each micro-batch. Without a `budget`,
    micro-batches have the configured size. Raises RunStopped if memory runs out, see `TokenBudget`.
    """
    share = shares_prompts(policy)
    zeros = torch.zeros(len(rollouts))
    responses = Responses(rollouts, zeros, zeros.bool(), zeros.bool())

    def logprobs_with(tokens: int) -> list[NDArray[np.float32]]:
        own: dict[int, torch.Tensor] = {}
        parts = rounds_of(policy, rollouts, tokens, share)
        for number, counts in policy.ranks.turns(len(parts)):
            check()
            places = parts[number]
            batch = collate(
                responses, places, pad_id=policy.pad_id, device=policy.device, share=share
            )
            with computing(batch):
                logprobs_BT, _ = batch_logprobs(policy, batch, config)
            for place, logprobs_T in zip(places, logprobs_BT.float().cpu(), strict=True):
                if counts:
                    rollout = rollouts[place]
                    own[place] = torch.zeros(len(rollout.response_ids))
                    own[place][rollout.sampled] = logprobs_T[: rollout.sampled_tokens]
        release(policy)
        by_place = {k: v for part in policy.ranks.all(own) for k, v in part.items()}
        return [by_place[place].numpy() for place in range(len(rollouts))]

    return (budget or TokenBudget(config.optimizer)).fitted(logprobs_with)
