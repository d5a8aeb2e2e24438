"""Compiled functions: what does not compile runs as it is, and what fails in itself fails."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._inductor import compile_fx

from mugrpo.model.compiled import compiled_code, failing

ROWS = torch.arange(3.0)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Break the compiler, and yield a list that gets an item each time that it is called."""
    calls: list[int] = []

    def fails(*_: Any, **__: Any) -> Any:
        calls.append(1)
        raise RuntimeError("ptxas failed")

    monkeypatch.setattr(torch._TorchCompileInductorWrapper, "__call__", fails)
    torch._dynamo.reset()
    yield calls
    torch._dynamo.reset()


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Return what `work` gives in a thread as autograd's, where torch's config is another one."""
    results: list[Any] = []

    def kept() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=kept)
    thread.start()
    thread.join()
    return results[0]


def test_what_does_not_compile_runs_as_it_is_and_is_not_tried_again(broken):
    code = compiled_code(lambda rows: rows * 2)
    assert torch.equal(in_a_thread(lambda: code(ROWS)), ROWS * 2)
    assert torch.equal(code(ROWS), ROWS * 2)
    assert len(broken) == 1


def test_what_does_not_compile_for_the_backward_pass_runs_as_it_is(monkeypatch):
    compiler, failed = compile_fx._compile_fx_inner, []

    def fails(*args: Any, **options: Any) -> Any:
        if options.get("is_backward"):
            failed.append(1)
            raise RuntimeError("ptxas failed")
        return compiler(*args, **options)

    monkeypatch.setattr(compile_fx, "_compile_fx_inner", fails)
    torch._dynamo.reset()
    code = compiled_code(lambda rows: (rows.sin() * rows).exp(), dynamic=True)
    rows = torch.ones(5, 7, requires_grad=True)
    code(rows).sum().backward()
    assert failed and rows.grad is not None
    torch._dynamo.reset()


def test_a_trial_is_told_what_does_not_compile(broken):
    code = compiled_code(lambda rows: rows * 2)
    with failing():
        assert isinstance(in_a_thread(lambda: code(ROWS)), torch._dynamo.exc.BackendCompilerFailed)
    assert torch.equal(code(ROWS), ROWS * 2)


def test_out_of_memory_is_not_taken_for_a_failure_of_the_compiler():
    """It lets micro-batches be halved."""

    @torch.compiler.disable
    def fails(rows: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    torch._dynamo.reset()
    with pytest.raises(torch.OutOfMemoryError):
        compiled_code(lambda rows: fails(rows))(ROWS)


def test_each_thread_may_compile_many_variants(broken):
    code = compiled_code(lambda rows: rows + 1)

    def limit() -> int:
        code(ROWS)
        return torch._dynamo.config.recompile_limit

    assert in_a_thread(limit) >= 64 and limit() >= 64
