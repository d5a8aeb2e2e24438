"""Whether an attention kernel may be used, and what FSDP does between a model's blocks."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from mugrpo.config.run import ModelOptions
from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.policy import Policy
from mugrpo.model.shared_prompts import Packing
from mugrpo.optimize.fsdp import distribute
from mugrpo.optimize.kernel import kernel_fault
from tests.builders import chain_tokenizer, tiny_config, tiny_policy
from tests.cases import table
from tests.model.test_shared_prompts import RAGGED, reference, rows


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


class OnGPU(torch.Tensor):
    """A tensor that stands for one on a GPU: numpy cannot read it."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


@table("sharing", [True, False])
@table("kernel", [reference, None])
def test_rows_that_fsdp_moves_to_its_gpu_give_what_they_gave_on_the_host(kernel, sharing):
    policy = tiny_policy("llama")
    compute = partial(response_logprobs, policy.model, temperature=0.7, chunk=16, kernel=kernel)
    *own, prompts = rows(RAGGED)
    given = [*own, prompts] if sharing else own
    moved = [torch.as_tensor(row).as_subclass(OnGPU) for row in given]
    assert torch.equal(compute(*moved)[0], compute(*given)[0])


def test_the_trial_gives_arrays_as_micro_batches_do():
    """FSDP would move tensors, and the host would wait for them."""
    policy, seen = tiny_policy("llama"), []

    def compute(*given: Any, **how: Any) -> Any:
        seen.extend(given)
        return response_logprobs(policy.model, *given, **how)

    policy.compute = compute
    assert kernel_fault(policy, reference) is None
    assert seen and not any(isinstance(row, torch.Tensor) for row in seen)


CACHED = ("context", "back", "sequences", "visible", "distance")  # indices that layers share


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def policy_of_blocks(**options: Any) -> Policy:
    """Return a model of four blocks, two with a window and two without."""
    config = tiny_config("gemma3")
    config.num_hidden_layers, config.layer_types = 4, config.layer_types * 2
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    return Policy(model, chain_tokenizer(), ModelOptions(**options))


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("kernel", "needed"), [(reference, {"sequences"}), (None, {*CACHED} - {"sequences"})]
)
def test_indices_of_packed_tokens_are_computed_once_a_micro_batch(
    monkeypatch, kernel, needed, checkpointing
):
    """In bf16, FSDP casts what each block is called with, so each could compute them again."""
    policy = policy_of_blocks(precision="bf16", gradient_checkpointing=checkpointing)
    policy.can_share_prompts = True
    distribute(policy)
    calls: Counter[str] = Counter()

    def counted(name: str, compute: Any, packing: Packing) -> Any:
        calls[name] += 1
        return compute(packing)

    for name in CACHED:
        found = vars(Packing)[name]
        monkeypatch.setattr(found, "func", partial(counted, name, found.func))
    assert policy.compute is not None
    logprobs, _ = policy.compute(*rows(RAGGED), temperature=1.0, chunk=16, kernel=kernel)
    logprobs.sum().backward()
    assert calls == dict.fromkeys(needed, 1)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_kernel_is_tried_on_weights_that_fsdp_gathers(precision):
    policy = policy_of_blocks(precision=precision)
    distribute(policy)
    assert policy.can_share_prompts and kernel_fault(policy, reference) is None
    for kernel, other in ((detached, "gradients"), (sees_the_future, "hidden states")):
        assert f"gives this model other {other}" in (kernel_fault(policy, kernel) or "")
    assert all(parameter.grad is None for parameter in policy.model.parameters())
