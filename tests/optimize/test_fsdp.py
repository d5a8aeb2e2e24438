"""What FSDP does between a model's blocks, with one rank in this process."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from mugrpo.config.run import ModelOptions
from mugrpo.model.policy import Policy
from mugrpo.model.shared_prompts import Packing
from mugrpo.optimize.fsdp import distribute
from mugrpo.optimize.kernel import kernel_fault
from tests.builders import chain_tokenizer, tiny_config
from tests.model.test_shared_prompts import RAGGED, reference, rows
from tests.optimize.test_kernel import detached, sees_the_future

CACHED = ("context", "back", "sequences", "visible", "distance")  # indices that layers share


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
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


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("kernel", "needed"), [(reference, {"context", "sequences"}), (None, {*CACHED} - {"sequences"})]
)
def test_indices_of_packed_tokens_are_computed_once_a_micro_batch(
    monkeypatch, kernel, needed, checkpointing
):
    """In bf16, FSDP casts what each block is called with; on a GPU each computation waits."""
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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_kernel_is_tried_on_weights_that_fsdp_gathers(precision):
    policy = policy_of_blocks(precision=precision)
    distribute(policy)
    assert policy.can_share_prompts and kernel_fault(policy, reference) is None
    for kernel, other in ((detached, "gradients"), (sees_the_future, "hidden states")):
        assert f"gives this model other {other}" in (kernel_fault(policy, kernel) or "")
    assert all(parameter.grad is None for parameter in policy.model.parameters())
