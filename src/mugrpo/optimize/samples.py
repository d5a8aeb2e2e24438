"""A few of an update's rollouts for people to read, with the objective's effect on each token.

Suffixes: B responses of a micro-batch, T sampled tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.disk.records import FinishReason, GroupKey, Rollout, Score, text_of
from mugrpo.optimize.batching import MicroBatch


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


class Recorder:
    """What an update computed for each response, of which a few are chosen for people to read."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def record(
        self,
        batch: MicroBatch,
        logprobs_BT: torch.Tensor,
        entropy_BT: torch.Tensor,
        metrics: dict[str, torch.Tensor],
    ) -> None:
        """Note what was computed for a micro-batch, in place of an earlier record of it."""
        logprobs, entropies = (t.detach().float().cpu() for t in (logprobs_BT, entropy_BT))
        marks = {
            name.removesuffix("_fraction"): tensor.cpu()
            for name, tensor in metrics.items()
            if name.endswith("_fraction")
        }
        rows = zip(batch.places, batch.advantages.tolist(), batch.chosen.sum(-1), strict=True)
        for i, (row, advantage, length) in enumerate(rows):
            self._seen[row] = _Seen(
                advantage,
                logprobs[i, :length].tolist(),
                entropies[i, :length].tolist(),
                {name: t[i, :length].nonzero()[:, 0].tolist() for name, t in marks.items()},
            )

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
