"""What an update reports: its metrics, and a few of its rollouts for people to read.

Suffixes: B responses of a micro-batch, T sampled tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.disk.records import FinishReason, GroupKey, Rollout, Score, text_of
from mugrpo.optimize.experience import MicroBatch
from mugrpo.processes.ranks import Ranks

Values = dict[str, float | None]


class TokenStatistics:
    """A few numbers for each response token of an update, and the metrics computed from them.

    `names` lists the names of the metrics that the loss returns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._sequences: list[torch.Tensor] = []  # log ratio of each computed response
        self._parts: dict[str, list[torch.Tensor]] = {}

    def add(
        self,
        batch: MicroBatch,
        logprobs_BT: torch.Tensor,
        entropy_BT: torch.Tensor,
        metrics: dict[str, torch.Tensor],
    ) -> None:
        tokens = {
            "log_ratio": logprobs_BT.detach() - batch.behavior_logprobs,
            "advantage": batch.advantages[:, None].expand_as(batch.mask),
            "entropy": entropy_BT,
            **{name: tensor.detach().float() for name, tensor in metrics.items()},
        }
        self._sequences.append((tokens["log_ratio"] * batch.mask).sum(-1).double().cpu())
        for name, tensor in tokens.items():
            self._parts.setdefault(name, []).append(tensor[batch.mask].float().cpu())

    def together(self, ranks: Ranks) -> TokenStatistics:
        """Return the statistics of all ranks together."""
        if ranks.size == 1:
            return self
        joined = TokenStatistics(self._names)
        for sequences, parts in ranks.all((self._sequences, self._parts)):
            joined._sequences += sequences
            for name, tensors in parts.items():
                joined._parts.setdefault(name, []).extend(tensors)
        return joined

    def effective_sample_share(self) -> float:
        """Return (sum w)^2 / (n sum w^2) over the sequence ratios w of the n computed responses.

        This is Kish's effective sample size as a share: 1 if all ratios are equal, 1/n if a single
        one outweighs the rest. It is 1 if no response was computed, and NaN if a ratio is.
        """
        if not self._sequences:
            return 1.0
        log_weights = torch.cat(self._sequences)  # as logarithms: a sequence's ratio overflows
        log_share = 2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)
        return min(log_share.exp().item() / len(log_weights), 1.0)  # in this order NaN stays NaN

    def values(self, update_tokens: int) -> Values:
        """Return the update's metrics.

        The loss's metrics are means over all `update_tokens` response tokens; tokens that were not
        computed count as 0. Ratios, divergences and entropy cover only the computed tokens
        (see `UpdateLoss.has_gradient`); they are None if there are no such tokens. KL and total
        variation are estimated on the behavior policy's own samples:

            kl_behavior = mean(r - 1 - log r), which estimates KL(behavior || policy) per token
            tv_token = mean(max(0, 1 - r))
            tv_sequence = mean(max(0, 1 - w)) over the computed responses, w = prod_t r_t
        """
        tokens = {name: torch.cat(parts) for name, parts in self._parts.items()}
        nothing = torch.empty(0)
        log_ratio = tokens.pop("log_ratio", nothing)
        advantage, entropy = tokens.pop("advantage", nothing), tokens.pop("entropy", nothing)
        ratio = log_ratio.exp()
        values: Values = {
            "kl_behavior": _mean(log_ratio.double().expm1() - log_ratio.double()),
            "tv_token": _mean((1 - ratio).clamp(min=0)),
            "tv_sequence": _mean(-torch.cat([nothing, *self._sequences]).expm1().clamp(max=0)),
            "entropy": _mean(entropy),
        }
        for sign, chosen in (("positive", advantage > 0), ("negative", advantage < 0)):
            part = ratio[chosen]
            values[f"ratio/{sign}/mean"] = _mean(part)
            for percent in (1, 50, 99):
                values[f"ratio/{sign}/p{percent:02d}"] = _quantile(part, percent / 100)
            values[f"ratio/{sign}/max"] = part.max().item() if len(part) else None
        for name in self._names:
            values[name] = tokens[name].sum().item() / update_tokens if name in tokens else 0.0
        return values


def _mean(values: torch.Tensor) -> float | None:
    return values.double().mean().item() if len(values) else None


def _quantile(values: torch.Tensor, share: float) -> float | None:
    """Return the smallest value v such that at least `share` of `values` are <= v."""
    if not len(values):
        return None
    # torch.quantile interpolates, and refuses more than 16 million values.
    rank = max(1, -int(-share * len(values) // 1))  # ceil(share x n), at least 1
    return values.kthvalue(rank).values.item()


# A few of an update's rollouts for people to read, with the objective's effect on each token.


def response(rollout: Rollout, score: Score, tokenizer: Any) -> dict[str, Any]:
    """Return a response and its score as people read them."""
    ended = rollout.finish_reason is FinishReason.STOP
    return {
        "sample": rollout.sample,
        "text": text_of(rollout.response_ids[: -1 if ended else None], tokenizer),
        "status": score.status.value,
        "reward": score.reward,
        "parts": score.parts,
        "finish_reason": rollout.finish_reason.value,
    }


@dataclass(frozen=True)
class _Seen:
    """What an update computed for a response with T sampled tokens."""

    advantage: float
    logprobs: list[float]  # [T], of the policy before the update
    entropies: list[float]  # [T], nats, of the same policy
    marks: dict[str, list[int]]  # what the loss did ("clipped") -> positions of those tokens


class SampleCollector:
    """A `Watch` for `Trainer.step` that collects an update's micro-batches."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def __call__(
        self, batch: MicroBatch, logprobs_BT: torch.Tensor, metrics: dict[str, torch.Tensor]
    ) -> None:
        for i, row in enumerate(batch.places):
            length = int(batch.mask[i].sum())
            marks = {
                name.removesuffix("_fraction"): tensor[i, :length].nonzero()[:, 0].tolist()
                for name, tensor in metrics.items()
                if name.endswith("_fraction")
            }
            logprobs, entropies = (
                tensor[i, :length].detach().float().tolist()
                for tensor in (logprobs_BT, metrics["entropy"])
            )
            self._seen[row] = _Seen(batch.advantages[i].item(), logprobs, entropies, marks)

    def chosen(
        self, rollouts: Sequence[Rollout], scores: Sequence[Score], count: int, tokenizer: Any
    ) -> list[dict[str, Any]]:
        """Return at most `count` of the update's `rollouts`, in order.

        Up to half of them have A < 0, the others A > 0. Each is the first of its group with that
        sign. Those with A > 0 come from groups that are not shown yet, if there are such groups.
        The first one of a group has all of its responses.
        """
        negative = self._first_of_groups(rollouts, -1.0)[: count // 2]
        shown = {rollouts[row].group for row in negative}
        positive = self._first_of_groups(rollouts, 1.0)
        positive.sort(key=lambda row: (rollouts[row].group in shown, row))
        rows = sorted([*negative, *positive[: count - len(negative)]])
        groups: dict[GroupKey, list[dict[str, Any]]] = {rollouts[row].group: [] for row in rows}
        for row, (rollout, score) in enumerate(zip(rollouts, scores, strict=True)):
            if rollout.group in groups:
                advantage = self._seen[row].advantage if row in self._seen else None
                described = response(rollout, score, tokenizer) | {"advantage": advantage}
                groups[rollout.group].append(described)
        return [
            self._described(rollouts[r], scores[r], self._seen[r], tokenizer)
            | {"group": groups.pop(rollouts[r].group, [])}
            for r in rows
        ]

    def _first_of_groups(self, rollouts: Sequence[Rollout], sign: float) -> list[int]:
        first: dict[GroupKey, int] = {}
        for row in sorted(self._seen):
            if self._seen[row].advantage * sign > 0:
                first.setdefault(rollouts[row].group, row)
        return list(first.values())

    def _described(
        self, rollout: Rollout, score: Score, seen: _Seen, tokenizer: Any
    ) -> dict[str, Any]:
        described = response(rollout, score, tokenizer) | {
            "problem_id": rollout.problem_id,
            "occurrence": rollout.occurrence,
            "prompt": tokenizer.decode(rollout.prompt_ids),
            "advantage": seen.advantage,
            "tokens": [tokenizer.decode([int(token)]) for token in rollout.response_ids],
            "behavior_logprobs": rollout.behavior_logprobs.tolist(),
            "logprobs": seen.logprobs,
            "entropies": seen.entropies,
            "marks": seen.marks,
        }
        if rollout.loss_mask is None:
            return described
        return described | _spread(seen, rollout.loss_mask)


def _spread(seen: _Seen, mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Return what was seen of the sampled tokens at their places in a response, 0 elsewhere.

    `mask` [T] is true for the sampled tokens of the response.
    """
    every, places = np.zeros((2, len(mask))), np.flatnonzero(mask)
    every[:, places] = [seen.logprobs, seen.entropies]
    return {
        "sampled": mask.tolist(),
        "logprobs": every[0].tolist(),
        "entropies": every[1].tolist(),
        "marks": {name: places[marked].tolist() for name, marked in seen.marks.items()},
    }
