"""Limit the tokens of a micro-batch, and retry with fewer if memory runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from mugrpo.config.optimizer import OptimizerOptions
from mugrpo.disk.errors import RunStopped
from mugrpo.model.memory import out_of_memory
from mugrpo.optimize.batching import MicroBatch

T = TypeVar("T")


class MicroBatchTooLarge(Exception):
    """Memory ran out in a micro-batch: its number of responses, and its cost in tokens."""

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
    which a gradient is summed, so it affects rounding and nothing else. After memory has run out, a
    run that is killed and resumed may therefore differ from an uninterrupted one in the last bits.
    """

    def __init__(
        self,
        options: OptimizerOptions,
        notify: Callable[[str], None] = lambda _: None,
        *,
        alone: bool = True,
    ) -> None:
        """Without `alone`, the budget is that of one rank among several and is never lowered."""
        self.options = options
        self.alone = alone
        self.notify = notify
        self.tokens = options.micro_batch_tokens

    @property
    def lowered(self) -> bool:
        return self.tokens < self.options.micro_batch_tokens

    def fitted(self, work: Callable[[int], T]) -> T:
        """Return `work(tokens)`. Retry with fewer tokens if it raises MicroBatchTooLarge.

        `work` must start from scratch every time. Raises RunStopped if fewer tokens would not help
        or may not be tried.
        """
        while True:
            try:
                return work(self.tokens)
            except MicroBatchTooLarge as error:
                responses, tokens = error.responses, error.tokens
            # Outside the handler, because the error's traceback keeps what was computed alive.
            gc.collect()
            torch.cuda.empty_cache()
            self._lower(responses, tokens)

    def _lower(self, responses: int, tokens: int) -> None:
        """Halve the smaller of budget and micro-batch, which splits the micro-batch in two.

        Raises RunStopped if the budget may not be lowered, or if a single response is too large.
        """
        now, chunk = self.tokens, self.options.logprob_chunk_tokens
        if responses == 1:
            raise RunStopped(
                f"memory ran out in a micro-batch of a single response ({tokens:,} tokens), which "
                f"a lower --optimizer.micro_batch_tokens (now {now}) cannot split; lower "
                f"--optimizer.logprob_chunk_tokens (now {chunk}) or --rollouts.max_new_tokens, or "
                "turn on --model.gradient_checkpointing (with --force)"
            )
        ran_out = f"memory ran out in a micro-batch of {responses} responses ({tokens:,} tokens)"
        if not self.alone:
            raise RunStopped(
                f"{ran_out} in one of several ranks; lower --optimizer.micro_batch_tokens (now "
                f"{now}, with --force)"
            )
        if not self.options.halve_on_out_of_memory:
            raise RunStopped(
                f"{ran_out}; lower --optimizer.micro_batch_tokens (now {now}, with --force), or "
                "turn on --optimizer.halve_on_out_of_memory"
            )
        self.tokens = min(now, tokens) // 2
        self.notify(
            f"{ran_out}: it is computed again with micro_batch_tokens {self.tokens} instead of "
            f"{now}, from now on; the gradient differs only by rounding"
        )
