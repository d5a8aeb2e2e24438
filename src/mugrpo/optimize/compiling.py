"""Compile the blocks of a model for updates on a GPU: their many passes over memory become few.

Engines decode with the same model, and may capture what it does. So its blocks are compiled code
only within `compiled`. What FSDP splits is not compiled.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from transformers import AttentionInterface

from mugrpo.model.compiled import compiled_code
from mugrpo.model.policy import Policy
from mugrpo.model.self_test import compiled_fault
from mugrpo.model.shared_prompts import PACKED, packed_attention
from mugrpo.optimize.forward import logprobs_function, shares_prompts
from mugrpo.optimize.fsdp import blocks_of

_WORTH = 10**8  # weights; the updates of a smaller model gain less than compiling takes


def choose_compiled(policy: Policy, say: Callable[[str], None]) -> None:
    """Turn on compiled code for updates of a large model on a GPU if the trial passes.

    Call `say` with a sentence if not. torch's own TORCH_COMPILE_DISABLE=1 leaves all as it is.
    """
    size = sum(weight.numel() for weight in policy.model.parameters())
    if policy.device.type != "cuda" or policy.compute is not None or size < _WORTH:
        return
    fault = try_compiled(policy)
    if fault:
        say(
            f"updates run without compiled code, which takes longer: it {fault}; torch.compile "
            "needs a C compiler and Python's headers, such as Debian's gcc and python3-dev"
        )


def try_compiled(policy: Policy) -> str | None:
    """Let updates of `policy` run compiled code, and return None, or return why they must not."""
    # A packing is another one in each micro-batch, and a layer's number another in each layer.
    AttentionInterface.register(PACKED, torch.compiler.disable(packed_attention))
    fault = compiled_fault(
        policy.model,
        logprobs_function(policy),
        lambda: _running(policy),
        kernel=policy.kernel,
        share=shares_prompts(policy),
        half=policy.precision == "bf16",
    )
    policy.compiled = fault is None
    return fault


@contextmanager
def compiled(policy: Policy) -> Iterator[None]:
    """Within the block, run the blocks of `policy` as compiled code if they were tried.

    Backward passes belong in it, too: with checkpointing, they compute blocks again. What turns
    out not to compile later, such as another shape, runs as it is, see `compiled_code`.
    """
    if not policy.compiled:
        yield
        return
    with _running(policy):
        yield


@contextmanager
def _running(policy: Policy) -> Iterator[None]:
    call = compiled_code(_call, dynamic=True)
    with ExitStack() as undo:
        for block in cast(list[Any], blocks_of(policy.working())):
            # A checkpoint within what is compiled, as of recent transformers, would leave all as it
            # is, without a word. So what is checkpointed is compiled.
            if block.training and getattr(block, "gradient_checkpointing", False):
                name, own = "_gradient_checkpointing_func", block._gradient_checkpointing_func
                block._gradient_checkpointing_func = partial(_checkpointed, own, call)
            else:
                name, own = "_compiled_call_impl", None
                block._compiled_call_impl = partial(call, block._call_impl)
            undo.callback(setattr, block, name, own)
        yield


def _checkpointed(own: Any, call: Any, run: Callable[..., Any], *args: Any) -> Any:
    """Checkpoint by a block's `own` function what it would `run`, and let `call` run it."""
    return own(partial(call, run), *args)


def _call(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return run(*args, **kwargs)
