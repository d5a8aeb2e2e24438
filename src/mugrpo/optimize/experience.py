"""What an update trains on: scored rollouts and their advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Rollout, Score
from mugrpo.optimize import advantages


@dataclass(frozen=True)
class Experience:
    """Scored rollouts in whole groups. The rollouts of a group are adjacent."""

    rollouts: Sequence[Rollout]
    scores: Sequence[Score]  # one for each rollout
    # name -> [T] for each rollout: the logprobs of other policies that the objective needs
    stored: Mapping[str, Sequence[NDArray[np.float32]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Responses:
    """All R responses of an update, in order, group by group.

    `advantages` [R], `varied` [R] and `groups` [R] are on the CPU. `rewards` [R] and `counted` [R]
    may be left out if the loss does not ask for them. `stored` has the logprobs [T] of other
    policies for each rollout, if the objective needs them.
    """

    rollouts: Sequence[Rollout]
    advantages: torch.Tensor  # [R] float64
    varied: torch.Tensor  # [R] bool, true if the group's rewards are not all equal
    groups: torch.Tensor  # [R] int64, the number of the group within the update, ascending
    stored: Mapping[str, Sequence[NDArray[np.float32]]] = field(default_factory=dict)
    # [R] float64, 0 if unknown
    rewards: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    # [R] bool, true if the response counts in its group's statistics
    counted: torch.Tensor = field(default_factory=lambda: torch.empty(0))


def with_advantages(experience: Experience, config: RunConfig) -> Responses:
    """Return the responses of `experience` with their advantages, group by group."""
    advantage = getattr(advantages, config.advantage.name)
    rewards, counted, values, varied = [], [], [], []
    pairs = zip(experience.rollouts, experience.scores, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0].group):
        scores = [score for _, score in group]
        rewards_1G = torch.tensor([[score.reward or 0.0 for score in scores]], dtype=torch.double)
        counted_1G = torch.tensor([[config.rewards.counts(score.status) for score in scores]])
        differ_1 = advantages.varied(rewards_1G, counted_1G)
        values_1G = advantage(rewards_1G, counted_1G, **config.advantage.knobs)
        if config.advantage.zero_variance_mask and not differ_1.item():
            values_1G = torch.zeros_like(values_1G)
        rewards.append(rewards_1G[0])
        counted.append(counted_1G[0])
        values.append(values_1G[0])
        varied.append(differ_1.expand(len(scores)))
    return Responses(
        experience.rollouts,
        torch.cat(values),
        torch.cat(varied),
        torch.arange(len(rewards)).repeat_interleave(torch.tensor([len(g) for g in rewards])),
        experience.stored,
        torch.cat(rewards),
        torch.cat(counted),
    )
