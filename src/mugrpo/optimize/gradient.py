"""Compute the gradient of one update's loss.

    responses with a gradient -> micro-batches -> for each: logprobs -> loss -> backward

Suffixes: B responses of a micro-batch, T sampled tokens of a response.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mugrpo.config.run import RunConfig
from mugrpo.model.policy import Policy
from mugrpo.optimize.batching import MicroBatch, collate
from mugrpo.optimize.budget import computing
from mugrpo.optimize.compiling import compiled
from mugrpo.optimize.diagnostics import TokenStatistics
from mugrpo.optimize.experience import Responses
from mugrpo.optimize.forward import batch_logprobs, rounds_of, shares_prompts
from mugrpo.optimize.fsdp import release
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.reduction import denominator, reduced_loss
from mugrpo.optimize.samples import Recorder


@dataclass(frozen=True)
class Gradient:
    """The results of an update's forward and backward passes, besides the gradient itself."""

    loss: float
    batches: Sequence[MicroBatch]
    statistics: TokenStatistics


def accumulate_gradient(
    policy: Policy,
    responses: Responses,
    loss: UpdateLoss,
    config: RunConfig,
    *,
    micro_batch_tokens: int,
    recorder: Recorder | None = None,
) -> Gradient:
    """Add the gradient of the update's loss to the policy's parameters.

    This is the gradient of the whole update: the denominator counts every response, so the cut into
    micro-batches affects only rounding. Responses without a gradient (advantage 0, if the
    objective gives them none) are not computed. Return the loss and what was computed. The
    `recorder` gets each micro-batch, and so gets some again if this is called again. Raises
    MicroBatchTooLarge if memory runs out.
    """
    tokens = sum(rollout.sampled_tokens for rollout in responses.rollouts)
    divisor = denominator(
        config.reduction,
        tokens=tokens,
        responses=len(responses.rollouts),
        max_new_tokens=config.rollouts.max_new_tokens,
    )
    places: list[int] = loss.has_gradient(responses).nonzero()[:, 0].tolist()
    batches = micro_batches(policy, responses, places, micro_batch_tokens)
    extras = prepass(policy, batches, loss, config)
    statistics, parts = TokenStatistics(loss.metrics), []
    with compiled(policy):
        for number, counts in policy.ranks.turns(len(batches)):
            batch = batches[number]
            with computing(batch):
                logprobs_BT, entropy_BT = batch_logprobs(policy, batch, config)
                loss_BT, metrics = loss(batch, logprobs_BT, extras[number])
                part = reduced_loss(loss_BT, batch.mask, config.reduction, divisor)
                (part * counts).backward()
                if counts:  # otherwise this rank computes it only to keep in step with the others
                    parts.append(part.detach())
                    statistics.add(batch, logprobs_BT, entropy_BT, metrics)
                    if recorder is not None:
                        recorder.record(batch, logprobs_BT, entropy_BT, metrics)
    total = sum(part.item() for part in statistics.arrive(*parts))
    total = sum(policy.ranks.all(total), 0.0)
    return Gradient(total, batches, statistics.together(policy.ranks))


def micro_batches(
    policy: Policy, responses: Responses, places: Sequence[int], tokens: int
) -> list[MicroBatch]:
    """Return the responses at `places` in micro-batches of at most `tokens` tokens each.

    `places` are indices into the R responses. A micro-batch has `ids` [B, L] on the host, and
    `mask` [B, T], `behavior_logprobs` [B, T] and `advantages` [B], among others, on the policy's
    device. Prompts are shared if the model can do so and it is cheaper. A response longer than
    `tokens` is alone in its micro-batch. Several ranks get equal work, see `rounds_of`.
    """
    share = shares_prompts(policy)
    parts = rounds_of(policy, [responses.rollouts[place] for place in places], tokens, share)
    collated = partial(collate, responses, pad_id=policy.pad_id, device=policy.device, share=share)
    return [collated([places[i] for i in part]) for part in parts]


@torch.no_grad()
def prepass(
    policy: Policy, batches: Sequence[MicroBatch], loss: UpdateLoss, config: RunConfig
) -> list[dict[str, torch.Tensor]]:
    """Return what the objective's pre-pass computes for each micro-batch: {name: [B, T] tensor}.

    The pre-pass sees the whole update. Most objectives have none; the dictionaries are then empty.
    Raises MicroBatchTooLarge if memory runs out.
    """
    if loss.objective.prepass is None or not batches:
        return [{} for _ in batches]
    width = max(batch.mask.shape[1] for batch in batches)

    def stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([torch.nn.functional.pad(t, (0, width - t.shape[1])) for t in tensors])

    own: dict[int, torch.Tensor] = {}
    for number, counts in policy.ranks.turns(len(batches)):
        with computing(batches[number]):
            logprobs_BT = batch_logprobs(policy, batches[number], config)[0]
        if counts:
            own[number] = logprobs_BT.cpu()
    release(policy)
    by_number: dict[int, Any] = {k: v for part in policy.ranks.all(own) for k, v in part.items()}
    results = loss.prepass(
        stacked([by_number[number].to(policy.device) for number in range(len(batches))]),
        {
            "behavior_logprobs": stacked([batch.behavior_logprobs for batch in batches]),
            "advantages": torch.cat([batch.advantages for batch in batches]),
            "mask": stacked([batch.mask for batch in batches]),
            **{
                name: stacked([batch.stored[name] for batch in batches])
                for name in batches[0].stored
            },
        },
    )
    sizes = [len(batch.places) for batch in batches]
    parts = {name: tensor.split(sizes) for name, tensor in results.items()}
    return [
        {name: part[i][:, : batch.mask.shape[1]] for name, part in parts.items()}
        for i, batch in enumerate(batches)
    ]
