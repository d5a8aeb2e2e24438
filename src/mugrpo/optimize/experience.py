"""What an update trains on: scored rollouts and their advantages. P problems, G responses each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.config.objectives import AdvantageOptions, FileAdvantage
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Rollout, Score
from mugrpo.disk.sources import load_file
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

    The tensors are on the CPU. `stored` has the logprobs [T] of other policies for each rollout, if
    the objective needs them.
    """

    rollouts: Sequence[Rollout]
    advantages: torch.Tensor  # [R] float64
    varied: torch.Tensor  # [R] bool, true if the group's rewards are not all equal
    counted: torch.Tensor  # [R] bool, true if the response counts in its group's statistics
    stored: Mapping[str, Sequence[NDArray[np.float32]]] = field(default_factory=dict)


def with_advantages(experience: Experience, config: RunConfig) -> Responses:
    """Return the responses of `experience` with their advantages, group by group."""
    advantage = advantage_of(config.advantage)
    counted, values, varied = [], [], []
    pairs = zip(experience.rollouts, experience.scores, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0].group):
        scores = [score for _, score in group]
        rewards_1G = torch.tensor([[score.reward or 0.0 for score in scores]], dtype=torch.double)
        counted_1G = torch.tensor([[config.rewards.counts(score.status) for score in scores]])
        differ_1 = advantages.varied(rewards_1G, counted_1G)
        values_1G = advantage(rewards_1G, counted_1G, **config.advantage.knobs)
        if config.advantage.zero_variance_mask and not differ_1.item():
            values_1G = torch.zeros_like(values_1G)
        counted.append(counted_1G[0])
        values.append(values_1G[0])
        varied.append(differ_1.expand(len(scores)))
    return Responses(
        experience.rollouts,
        torch.cat(values),
        torch.cat(varied),
        torch.cat(counted),
        experience.stored,
    )


def advantage_of(options: AdvantageOptions) -> Callable[..., torch.Tensor]:
    """Return the function that `options` choose, with (rewards_PG, valid_PG, **options.knobs).

    Raises UsageError if a file cannot be used. What its function returns is checked at each call:
    [P, G] finite numbers.
    """
    if not isinstance(options, FileAdvantage):
        chosen: Callable[..., torch.Tensor] = getattr(advantages, options.name)
        return chosen
    own = _of_file(options.path)

    def checked(rewards_PG: torch.Tensor, valid_PG: torch.Tensor, **knobs: Any) -> torch.Tensor:
        with _explained(options.path):
            values_PG = torch.as_tensor(own(rewards_PG, valid_PG, **knobs)).double()
            if values_PG.shape != rewards_PG.shape:
                raise ValueError(f"returned {[*values_PG.shape]} for {[*rewards_PG.shape]}")
            if not values_PG.isfinite().all():
                raise ValueError("returned numbers that are not finite")
        return values_PG.masked_fill(~valid_PG, 0.0)

    return checked


@cache
def _of_file(path: str) -> Callable[..., torch.Tensor]:
    with _explained(path):
        file = Path(path)
        found: Callable[..., torch.Tensor] = load_file(f"advantage_in_{file.stem}", file).advantages
        return found


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise UsageError(
            f"advantage.path = {path!r} cannot be used ({type(error).__name__}: {error}); it must "
            "define advantages(rewards, valid, **options), which returns a tensor like rewards"
        ) from None
