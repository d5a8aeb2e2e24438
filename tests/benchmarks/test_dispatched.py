"""The counter sees each kind of wait, and an update has few operations and waits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dispatched import Counted, config_of, count, eager_step, kernel, static_step
from mugrpo.model.rows import sent
from tests.cases import table

HERE = torch.device("cpu")  # which stands for the GPU
CHOSEN = torch.tensor([0, 2])

WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "_local_scalar_dense": lambda x: x.sum().item(),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "index of bools": lambda x: x[x > 0],
    "index on the host": lambda x: x[CHOSEN],
    "repeat_interleave": lambda x: x.repeat_interleave((x * 0).long() + 2),
    "masked_scatter_backward": lambda x: _masked_scatter(x).sum().backward(),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "to": lambda x: torch.ones(3).to(HERE),
    "tensor": lambda x: torch.tensor([1.0, 2.0], device=HERE),
    "as_tensor": lambda x: torch.as_tensor(2.0, device=HERE),
    "copy_": lambda x: x.copy_(torch.ones(3)),
}
OTHER_FORMS: list[tuple[str, Callable[[torch.Tensor], Any]]] = [
    ("_local_scalar_dense", lambda x: x[0] if x.sum() > 0 else x[1]),
    ("_local_scalar_dense", lambda x: int(x.max())),
    ("index of bools", lambda x: x.index_put_((x > 0,), x.new_ones(()))),
    ("index of bools", lambda x: x.clone().requires_grad_()[x > 0].sum()),
    ("cpu", lambda x: (x + 1)[1:].cpu()),
]


def _masked_scatter(x: torch.Tensor) -> torch.Tensor:
    source = x.clone().requires_grad_()
    return torch.zeros_like(x).masked_scatter(x > 0, source)


def counted(work: Callable[[torch.Tensor], Any]) -> Counted:
    there = torch.tensor([1.0, -1.0, 2.0])
    with Counted([there]) as found:
        work(there)
    return found


@table(("kind", "work"), [*WAITS.items(), *OTHER_FORMS])
def test_each_kind_of_wait_is_seen_once(kind, work):
    assert +counted(work).waits == {kind: 1}


@table(
    "work",
    [
        lambda x: sent(np.ones(3), HERE) + x,
        lambda x: x[sent(CHOSEN, HERE)] + torch.arange(2, device=HERE),
        lambda x: x.index_select(0, sent(CHOSEN, HERE)),
        lambda x: torch.where(x > 0, x, 0.0).sum(),
        lambda x: x.cumsum(0).view(3, 1).expand(3, 4).float(),
        lambda x: torch.ones(3).numpy().tolist() + torch.ones(3)[torch.ones(3) > 0].tolist(),
    ],
)
def test_what_does_not_wait_is_not_counted(work):
    assert not +counted(work).waits


def test_tensors_of_the_host_cannot_be_mixed_with_those_of_the_gpu():
    """So what is counted could run on a GPU."""
    with pytest.raises(RuntimeError, match="mixes"):
        counted(lambda x: x + torch.ones(3))
    counted(lambda x: x * torch.tensor(2.0))  # of no dimension: CUDA takes it for a number


def test_operations_and_bytes_by_hand():
    """A sum of two reads 24 bytes and writes 12; the second changes its memory. A view is free."""
    found = counted(lambda x: (x + x[None]).add_(1.0).view(3))
    assert found.operations == {"add": 1, "add_": 1}
    assert found.moved == {"add": 12 + 12 + 12, "add_": 12 + 12}
    found = counted(lambda x: x[:, None] @ x[None])
    assert found.operations == {"mm": 1} and not found.moved


@table("model", [{}, {"gradient_checkpointing": True}])
@table("attention", [kernel, None])
def test_an_update_of_one_micro_batch_waits_for_the_gpu_at_most_five_times(model, attention):
    found = count(1, config_of(**model), attention)
    assert 1 <= found.waits.total() <= 5


def test_a_layer_of_an_update_has_few_operations():
    """With torch's own norms, of one operation each way."""
    one, two = (count(layers, config_of(), kernel) for layers in (1, 2))
    assert one.tokens == two.tokens and one.waits == two.waits
    assert 60 < (two.operations - one.operations).total() <= 95
    assert one.operations.total() - (two.operations - one.operations).total() <= 170


@table("form", ["qwen2", "llama", "qwen3"])
def test_a_static_decoding_step_has_few_operations_and_never_waits(form):
    """Eager steps wait at each step; both have torch's own norms."""
    two, three = (static_step(form, layers) for layers in (2, 3))
    layer = (three.operations - two.operations).total()
    assert 20 < layer <= 30 and 60 < two.operations.total() - 2 * layer <= 80
    assert two.waits.total() == 0 < eager_step(form, 2).waits.total()
    assert two.operations["_flash_attention_forward"] == 2
