"""The repeated blocks of a model, which hold most of its weights, and their compilation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from types import MethodType
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from mugrpo.disk.errors import UsageError
from mugrpo.model.shared_prompts import PACKED, packed_attention


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the model's repeated blocks: the ModuleList with the most parameters.

    Of a model that also reads images, it is one of the part that reads text.
    """
    decoder = getattr(model, "get_decoder", lambda: model)()
    lists = [list(m) for m in decoder.modules() if isinstance(m, nn.ModuleList) and len(m)]
    assert lists, f"{type(model).__name__} has no list of blocks"
    return max(lists, key=lambda blocks: sum(p.numel() for b in blocks for p in b.parameters()))


def refuse_without_compiler(device: str) -> None:
    """Raise UsageError if torch.compile lacks the compiler that it needs for `device`."""
    if device == "cuda":
        needed, found = "Triton", find_spec("triton") is not None
    else:
        needed = "a C++ compiler (g++)"
        found = any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++")))
    if not found:
        raise UsageError(f"model.compile needs {needed}; install it, or leave model.compile out")


def compile_blocks(model: nn.Module, backend: Any = "inductor") -> None:
    """Let torch.compile replace the forward passes of the model's blocks, each at its first call.

    Sizes are dynamic, so a micro-batch of another shape is not compiled again. Packed attention is
    not compiled, because which tokens attend to which differs from batch to batch. FSDP's gathering
    of weights, which surrounds a forward pass, is not either. transformers checkpoints within it,
    where torch would compile nothing, so what it checkpoints is compiled instead.
    """
    AttentionInterface.register(PACKED, torch.compiler.disable(packed_attention))
    for block in blocks_of(model):
        inner, checkpoints = _inner(type(block).forward)
        own = MethodType(inner, block)  # not that of the block that it is a copy of
        compiled = torch.compile(own, dynamic=True, backend=backend)
        block.forward = partial(_checkpointed, block, compiled) if checkpoints else compiled


def _inner(forward: Any) -> tuple[Any, bool]:
    """Return the forward pass that transformers' wrapper checkpoints, and whether there is one."""
    inner = forward
    while inner.__code__.co_name == "forward_with_checkpointing":
        inner = inner.__wrapped__
    return inner, inner is not forward


def _checkpointed(block: Any, forward: Any, *inputs: Any, **options: Any) -> Any:
    """Call `forward` as transformers' wrapper does."""
    if block.gradient_checkpointing and block.training:
        return block._gradient_checkpointing_func(partial(forward, **options), *inputs)
    return forward(*inputs, **options)


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Within the block, let the model compute as if `compile_blocks` had not been called."""
    blocks = blocks_of(model)
    compiled = [vars(block).pop("forward", None) for block in blocks]
    try:
        yield
    finally:
        for block, forward in zip(blocks, compiled, strict=True):
            if forward is not None:
                block.forward = forward
