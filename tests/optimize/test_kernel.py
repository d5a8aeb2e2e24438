"""Whether an attention kernel may be used, tried on the CPU with a reference of it."""

from typing import Any

import torch

from mugrpo.optimize.kernel import kernel_fault
from tests.builders import tiny_policy
from tests.cases import table
from tests.model.test_shared_prompts import reference


def detached(*arguments: Any, **options: Any) -> torch.Tensor:
    query, key, value, *rest = arguments
    return reference(query, key.detach(), value, *rest, **options)


def sees_the_future(*arguments: Any, **options: Any) -> torch.Tensor:
    return reference(*arguments, **{**options, "window_size": (-1, -1)})


def detached_values(*arguments: Any, **options: Any) -> torch.Tensor:
    query, key, value, *rest = arguments
    return reference(query, key, value.detach(), *rest, **options)


def wrong_beyond_64_keys(*arguments: Any, **options: Any) -> torch.Tensor:
    query, key, value, *rest = arguments
    starts = arguments[4]
    places = torch.arange(len(key)) - starts[torch.bucketize(torch.arange(len(key)), starts) - 1]
    return reference(query, key, value * (places <= 64)[:, None, None], *rest, **options)


def fails(*arguments: Any, **options: Any) -> torch.Tensor:
    raise RuntimeError("head dimension 512 is not supported")


@table("form", ["llama", "gemma3", "gpt2"])
def test_a_kernel_that_agrees_has_no_fault_and_leaves_no_gradient(form):
    policy = tiny_policy(form)
    assert kernel_fault(policy, reference) is None
    assert all(parameter.grad is None for parameter in policy.model.parameters())


@table(
    ("kernel", "words"),
    [
        (detached, "other gradients of its first weights of shared prompts"),
        (detached_values, "other gradients of its first weights of shared prompts"),
        (sees_the_future, "other hidden states of shared prompts"),
        (wrong_beyond_64_keys, "other hidden states of shared prompts"),
        (fails, "varlen_attn fails (head dimension 512 is not supported)"),
    ],
)
def test_a_kernel_that_does_not_agree_is_detected(kernel, words):
    assert words in (kernel_fault(tiny_policy("llama"), kernel) or "")
