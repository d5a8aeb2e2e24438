"""What an update trains on: scored rollouts and their advantages, in micro-batches.

B responses, L tokens, T sampled tokens of a response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.config.objectives import AdvantageOptions, FileAdvantage
from mugrpo.config.run import RunConfig
from mugrpo.config.training import OptimizerOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.records import Rollout, Score
from mugrpo.disk.sources import load_file
from mugrpo.model.hardware import give_back_memory, out_of_memory
from mugrpo.model.shared_prompts import response_lengths
from mugrpo.optimize import advantages
from mugrpo.optimize.cut import Layout, layout, prompt_key


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


# Collate responses into micro-batches.
#
# A micro-batch holds padded tensors; its layout says how the model computes them (see `cut`). The
# model computes all tokens of a response, those of an environment too. What the loss sees, [B, T],
# is only the tokens that the policy sampled, next to each other. So "the token before" or "the
# mean over tokens" means the same with turns and without.


@dataclass(frozen=True)
class MicroBatch:
    """Responses that go through the model together."""

    places: list[int]  # the responses' places in the update
    ids: torch.Tensor  # [B, L] int64, prompt and response, right-padded
    prompt_lengths: torch.Tensor  # [B] int64
    mask: torch.Tensor  # [B, T] bool, false in padding
    behavior_logprobs: torch.Tensor  # [B, T] float32
    advantages: torch.Tensor  # [B] float32
    varied: torch.Tensor  # [B] bool, true if the group's rewards are not all equal
    stored: dict[str, torch.Tensor]  # name -> [B, T] float32, logprobs stored beside the rollouts
    layout: Layout  # how the model computes them
    prompts: torch.Tensor | None  # [B] int64, each response's prompt number; None if not shared
    # [B, T] int64, the index in its response of each sampled token; None if these are 0, 1, 2, ...
    steps: torch.Tensor | None = None


def collate(
    responses: Responses, places: list[int], *, pad_id: int, device: torch.device, share: bool
) -> MicroBatch:
    """Return the micro-batch of the responses at `places`.

    With `share`, responses to the same prompt share it if that is cheaper.
    """
    chosen = [responses.rollouts[place] for place in places]
    prompts = np.array([len(r.prompt_ids) for r in chosen])
    lengths = np.array([len(r.response_ids) for r in chosen])
    sampled = np.array([r.sampled_tokens for r in chosen])
    ids_BL = np.full((len(places), (prompts + lengths).max()), pad_id, np.int64)
    for b, r in enumerate(chosen):
        ids_BL[b, : prompts[b]] = r.prompt_ids
        ids_BL[b, prompts[b] : prompts[b] + lengths[b]] = r.response_ids
    stored = {
        name: _padded([values[p][r.sampled] for p, r in zip(places, chosen, strict=True)])
        for name, values in responses.stored.items()
    }
    chosen_layout = layout(chosen, share=share)
    numbers = {prompt: u for u, prompt in enumerate(dict.fromkeys(map(prompt_key, chosen)))}
    prompts_B = torch.tensor([numbers[prompt_key(r)] for r in chosen], device=device)
    return MicroBatch(
        places=places,
        ids=torch.from_numpy(ids_BL).to(device),
        prompt_lengths=torch.from_numpy(prompts).to(device),
        mask=torch.from_numpy(np.arange(sampled.max()) < sampled[:, None]).to(device),
        behavior_logprobs=_padded([r.behavior_logprobs[r.sampled] for r in chosen]).to(device),
        advantages=responses.advantages[places].to(device, torch.float32),
        varied=responses.varied[places].to(device),
        stored={name: values.to(device) for name, values in stored.items()},
        layout=chosen_layout,
        prompts=prompts_B if chosen_layout.shared else None,
        steps=_steps(chosen, device),
    )


def cost(batches: Sequence[MicroBatch]) -> dict[str, Any]:
    """Return the cost of an update as metrics.

    `computed_tokens` is the number of tokens that went through the model, without padding.
    `padding_share` is the share of padding in everything that went through the model.
    `shared_prompt_share` is the share of tokens that sharing prompts saved.
    """
    computed = sum(batch.layout.computed for batch in batches)
    padded = sum(batch.layout.padded for batch in batches)
    alone = sum(
        int((batch.prompt_lengths + response_lengths(batch.mask, batch.steps)).sum())
        for batch in batches
    )
    return {
        "computed_tokens": computed,
        "padding_share": 1 - computed / padded if padded else 0.0,
        "shared_prompt_share": 1 - computed / alone if alone else 0.0,
    }


def _steps(rollouts: Sequence[Rollout], device: torch.device) -> torch.Tensor | None:
    if all(rollout.loss_mask is None for rollout in rollouts):
        return None
    return _padded([np.arange(len(r.response_ids))[r.sampled] for r in rollouts]).to(device)


def _padded(rows: Sequence[NDArray[Any]]) -> torch.Tensor:
    padded = np.zeros((len(rows), max(map(len, rows))), rows[0].dtype)
    for b, values in enumerate(rows):
        padded[b, : len(values)] = values
    return torch.from_numpy(padded)


# Limit the tokens of a micro-batch, and retry with fewer if memory runs out.


T = TypeVar("T")


class MicroBatchTooLarge(Exception):
    """An out-of-memory error in a micro-batch, with its number of responses and cost in tokens."""

    def __init__(self, responses: int, tokens: int) -> None:
        super().__init__(responses, tokens)
        self.responses, self.tokens = responses, tokens


@contextmanager
def computing(batch: MicroBatch) -> Iterator[None]:
    """Raise MicroBatchTooLarge if memory runs out in the block, which computes `batch`."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise MicroBatchTooLarge(len(batch.places), int(batch.layout.cost)) from error


class TokenBudget:
    """The most tokens a micro-batch may hold: `optimizer.micro_batch_tokens` until memory runs out.

    `notify` is called with a sentence about every change. A lowered budget stays low until the
    process ends; a resumed run starts with the configured one. The budget decides the order in
    which a gradient is summed, so it affects only rounding. After memory has run out, a run that is
    killed and resumed may therefore differ from an uninterrupted one in the last bits.
    """

    def __init__(
        self,
        options: OptimizerOptions,
        notify: Callable[[str], None] = lambda _: None,
        ranks: int = 1,
    ) -> None:
        """Prepare the budget of a process that is one of `ranks`."""
        self.options = options
        self._ranks = ranks
        self.notify = notify
        self.tokens = options.micro_batch_tokens

    @property
    def lowered(self) -> bool:
        return self.tokens < self.options.micro_batch_tokens

    def fitted(self, work: Callable[[int], T]) -> T:
        """Return `work(tokens)`. Retry with fewer tokens if it raises MicroBatchTooLarge.

        `work` must start from scratch every time. Raises RunStopped if fewer tokens would not help,
        or if the budget must not be lowered.
        """
        while True:
            try:
                return work(self.tokens)
            except MicroBatchTooLarge as error:
                responses, tokens = error.responses, error.tokens
            # Not in the handler: there, the error's traceback still keeps tensors in memory.
            give_back_memory()
            self._lower(responses, tokens)

    def _lower(self, responses: int, tokens: int) -> None:
        """Set the budget to half of itself or of the micro-batch, whichever is less.

        This splits the micro-batch. Raises RunStopped if the budget must not be lowered, or if a
        single response is too large.
        """
        now = self.tokens
        if responses == 1:
            raise RunStopped(
                f"memory ran out in a micro-batch of a single response ({tokens:,} tokens), which "
                f"a lower --optimizer.micro_batch_tokens (now {now}) cannot split; lower "
                "--rollouts.max_new_tokens, or turn on --model.gradient_checkpointing "
                "(with --force)"
            )
        ran_out = f"memory ran out in a micro-batch of {responses} responses ({tokens:,} tokens)"
        if self._ranks > 1:  # the others wait for this one in the middle of an exchange
            raise RunStopped(
                f"{ran_out} on one of several ranks; add --optimizer.micro_batch_tokens "
                f"{min(now, tokens) // 2} --force (now {now})"
            )
        self.tokens = min(now, tokens) // 2
        self.notify(
            f"{ran_out}; lowering micro_batch_tokens from {now} to {self.tokens} and computing it "
            "again; the gradient differs only by rounding"
        )
