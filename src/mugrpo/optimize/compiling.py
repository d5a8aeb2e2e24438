"""Compile the blocks of a model for updates on a GPU: their many passes over memory become few.

Engines decode with the same model, and capture what it does. So its blocks are compiled code only
within `compiled`. What FSDP splits is not compiled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface

from mugrpo.model.policy import Policy
from mugrpo.model.self_test import compiled_fault
from mugrpo.model.shared_prompts import PACKED, packed_attention
from mugrpo.optimize.forward import logprobs_function, shares_prompts
from mugrpo.optimize.fsdp import blocks_of

_VARIANTS = 64  # of a block, by kind of layer and shape; torch's default is 8


def choose_compiled(policy: Policy, say: Callable[[str], None]) -> None:
    """Let updates of `policy` run compiled code on a GPU if it can be made and agrees.

    Call `say` with a sentence if not. torch's own TORCH_COMPILE_DISABLE=1 leaves all as it is.
    """
    if policy.device.type != "cuda" or policy.compute is not None:
        return
    fault = try_compiled(policy)
    if fault:
        say(
            f"updates run without compiled code, which takes longer: it {fault}; torch.compile "
            "needs a C compiler and Python's headers, such as Debian's gcc and python3-dev"
        )


def try_compiled(policy: Policy) -> str | None:
    """Let updates of `policy` run compiled code, and return None, or return why they must not."""
    import torch._dynamo  # it takes a second

    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _VARIANTS)
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
    out not to compile later, such as another shape, runs as it is.
    """
    if not policy.compiled:
        yield
        return
    with torch._dynamo.config.patch(suppress_errors=True), _running(policy):
        yield


@contextmanager
def _running(policy: Policy) -> Iterator[None]:
    blocks: list[Any] = blocks_of(policy.working())
    call = torch.compile(_call, dynamic=True)
    for block in blocks:
        if block.training and getattr(block, "gradient_checkpointing", False):
            # Recent transformers checkpoint within a block's forward pass: a compiler of the whole
            # would leave all as it is.
            own = block._gradient_checkpointing_func
            block._gradient_checkpointing_func = partial(_checkpointed, own, call)
        else:
            block._compiled_call_impl = partial(call, block._call_impl)
    try:
        yield
    finally:
        for block in blocks:
            block._compiled_call_impl = None
            checkpoint = getattr(block, "_gradient_checkpointing_func", None)
            if isinstance(checkpoint, partial) and checkpoint.func is _checkpointed:
                block._gradient_checkpointing_func = checkpoint.args[0]


def _checkpointed(own: Callable[..., Any], call: Any, run: Callable[..., Any], *args: Any) -> Any:
    """Checkpoint a block by its `own` function, and let it and the backward pass run `call`."""
    return own(partial(call, run), *args)


def _call(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return run(*args, **kwargs)
