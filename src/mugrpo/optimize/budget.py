"""Limit the tokens of a micro-batch, and retry with fewer if memory runs out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mugrpo.config.training import MICRO_BATCH_TOKENS, OptimizerOptions
from mugrpo.disk.errors import RunStopped
from mugrpo.model.memory import give_back_memory, out_of_memory
from mugrpo.optimize.batching import MicroBatch

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
        self._ranks = ranks
        self.notify = notify
        self._most = self.tokens = options.micro_batch_tokens or MICRO_BATCH_TOKENS

    @property
    def lowered(self) -> bool:
        return self.tokens < self._most

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
