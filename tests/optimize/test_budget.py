"""The token budget, which is halved until the work fits, and the errors that it is halved for."""

import weakref
from collections.abc import Callable

import pytest

from mugrpo.config.training import OptimizerOptions
from mugrpo.disk.errors import RunStopped
from mugrpo.model.memory import out_of_memory
from mugrpo.optimize.budget import MicroBatchTooLarge, TokenBudget
from tests.cases import table
from tests.faults.harm import CPU, CUDA


@table(
    ("error", "expected"),
    [
        (CUDA, True),
        (CPU, True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 b"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("std::bad_alloc"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (ValueError("a word problem: the computer is out of memory"), False),
        (OSError(12, "Cannot allocate memory"), False),
        (RunStopped("memory ran out in generation"), False),
    ],
)
def test_out_of_memory_errors_are_told_apart_from_others(error: Exception, expected: bool):
    assert out_of_memory(error) is expected


def work_that_fits(limit: int, cost: int, asked: list[int]) -> Callable[[int], str]:
    """Return work that takes min(budget, `cost`) tokens and fails above `limit`. It appends each
    budget that it is given to `asked`."""

    def work(budget: int) -> str:
        asked.append(budget)
        if min(budget, cost) > limit:
            raise MicroBatchTooLarge(2, min(budget, cost))
        return "done"

    return work


def test_the_budget_is_halved_until_the_work_fits_and_stays_there():
    asked: list[int] = []
    told: list[str] = []
    budget = TokenBudget(OptimizerOptions(micro_batch_tokens=1000), told.append)
    assert not budget.lowered
    assert budget.fitted(work_that_fits(300, 5000, asked)) == "done"
    assert asked == [1000, 500, 250] and budget.lowered and budget.tokens == 250
    assert "from 1000 to 500 and" in told[0] and "from 500 to 250 and" in told[1]
    assert budget.fitted(work_that_fits(300, 5000, asked)) == "done"
    assert asked == [1000, 500, 250, 250] and len(told) == 2
    large: list[int] = []  # half of a budget of 100,000 would still hold the micro-batch of 700
    budget = TokenBudget(OptimizerOptions(micro_batch_tokens=100_000))
    budget.fitted(work_that_fits(400, 700, large))
    assert large == [100_000, 350]


def test_memory_of_a_failed_attempt_is_freed_before_the_retry():
    class Activations:
        pass

    kept: list[weakref.ref[Activations]] = []

    def work(budget: int) -> None:
        assert [ref for ref in kept if ref() is not None] == []
        activations = Activations()
        circle = [activations]
        circle.append(circle)  # type: ignore[arg-type]
        kept.append(weakref.ref(activations))
        if len(kept) < 3:
            raise MicroBatchTooLarge(2, budget) from CPU

    TokenBudget(OptimizerOptions()).fitted(work)
    assert len(kept) == 3


def test_a_single_response_that_is_too_large_stops_the_run_with_what_would_help():
    budget = TokenBudget(OptimizerOptions(micro_batch_tokens=64))

    def work(budget: int) -> None:
        raise MicroBatchTooLarge(3 if budget == 64 else 1, 60)

    with pytest.raises(RunStopped, match=r"\(60 tokens\).* \(now 30\) .*gradient_checkpointing"):
        budget.fitted(work)
