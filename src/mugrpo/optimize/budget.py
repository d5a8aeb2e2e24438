"""How many tokens a micro-batch may hold, and what is done where memory does not hold it."""

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
    """Memory ran out in a micro-batch of so many responses, which cost so many tokens."""

    def __init__(self, responses: int, tokens: int) -> None:
        super().__init__(responses, tokens)
        self.responses, self.tokens = responses, tokens


@contextmanager
def computing(batch: MicroBatch) -> Iterator[None]:
    """Memory that runs out in the block, which computes `batch`, becomes MicroBatchTooLarge."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise MicroBatchTooLarge(len(batch.places), int(batch.layout.cost)) from error


class TokenBudget:
    """Tokens of a micro-batch at most: `optimizer.micro_batch_tokens` until memory runs out.

    `notify` is told of every change. A lower budget stays for as long as the run is open; a resumed
    run begins with the configured one again. It changes the order in which a gradient is summed,
    so rounding, and nothing else: from where memory ran out, a killed and resumed run need not
    agree with an uninterrupted one in the last bits.
    """

    def __init__(
        self,
        options: OptimizerOptions,
        notify: Callable[[str], None] = lambda _: None,
        *,
        alone: bool = True,
    ) -> None:
        """Not `alone`, of one rank among several: then it stays as it is."""
        self.options = options
        self.alone = alone
        self.notify = notify
        self.tokens = options.micro_batch_tokens

    @property
    def lowered(self) -> bool:
        return self.tokens < self.options.micro_batch_tokens

    def fitted(self, work: Callable[[int], T]) -> T:
        """What `work` returns for a budget of tokens, done anew with less where it is too much.

        So `work` must begin from nothing. Raises RunStopped where less would not help, or is not
        to be tried.
        """
        while True:
            try:
                return work(self.tokens)
            except MicroBatchTooLarge as error:
                responses, tokens = error.responses, error.tokens
            # Outside of the handler: the error's traceback holds on to what was computed.
            gc.collect()
            torch.cuda.empty_cache()
            self._lower(responses, tokens)

    def _lower(self, responses: int, tokens: int) -> None:
        """Half of what the micro-batch cost, or of the budget: either cuts it in two."""
        now, chunk = self.tokens, self.options.logprob_chunk_tokens
        if responses == 1:
            raise RunStopped(
                f"memory ran out in a micro-batch of a single response ({tokens:,} tokens), which "
                f"no --optimizer.micro_batch_tokens (now {now}) makes smaller; lower "
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
            f"{now}, which stays; the gradient is the same but for rounding"
        )
