"""Split a policy's weights, gradients and optimizer state among ranks, with FSDP2."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from mugrpo.disk.errors import UsageError
from mugrpo.model.dtensors import fill, tensors_of
from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.policy import Policy
from mugrpo.model.self_test import can_share_prompts


class _Logprobs(nn.Module):
    """A model wrapper that returns logprobs, so FSDP gathers head and embeddings only once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *rows: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return response_logprobs(self.model, *rows, **options)


def distribute(policy: Policy) -> None:
    """Split the first rank's weights among all of the policy's ranks, see `shard_over`.

    Raises UsageError on all ranks if one of them has built a different model from the same files.
    """
    ranks, model = policy.ranks, policy.model
    forms = ranks.all([(name, t.shape, t.dtype) for name, t in tensors_of(model).items()])
    if any(form != forms[0] for form in forms):
        raise UsageError(
            "the model's files and its config.json do not agree on its weights, so it cannot be "
            "shared among processes; load it with transformers, save it, and name the new folder"
        )
    if policy.can_share_prompts is None:  # tried on the whole model
        policy.can_share_prompts = ranks.from_first(ranks.first and can_share_prompts(model))
    source = tensors_of(model) if ranks.first else None
    mesh = init_device_mesh(policy.device.type, (ranks.size,), mesh_dim_names=("shards",))
    module = _Logprobs(model)
    shard_over(mesh, module, model, half=policy.precision == "bf16")
    fill(model, source, ranks)
    policy.compute = module
    policy.shard = (ranks.rank, ranks.size)
    # If transformers saves other tensors than are in memory, it needs all of them at once.
    converts = bool(getattr(model, "_weight_conversions", None))
    policy.files = ranks.from_first(1 if converts or policy.adapter else ranks.size)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the model's repeated blocks: the ModuleList with the most parameters.

    Of a model that also reads images, it is one of the part that reads text.
    """
    decoder = getattr(model, "get_decoder", lambda: model)()
    lists = [list(m) for m in decoder.modules() if isinstance(m, nn.ModuleList) and len(m)]
    assert lists, f"{type(model).__name__} has no list of blocks"
    return max(lists, key=lambda blocks: sum(p.numel() for b in blocks for p in b.parameters()))


def shard_over(mesh: DeviceMesh, whole: nn.Module, model: nn.Module, *, half: bool) -> None:
    """Split the weights of `whole`, a module that wraps `model`, among the ranks of `mesh`.

    Each block of the model is gathered when it is computed. The gradient of a parameter is the sum
    of the ranks' gradients. If `half`, weights are gathered and used in bf16, and gradients are
    summed in fp32.
    """
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard = partial(fully_shard, mesh=mesh, mp_policy=mixed if half else MixedPrecisionPolicy())
    for block in blocks_of(model):
        shard(block)
    shard(whole)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo supports only sums


def release(policy: Policy) -> None:
    """Free the gathered parameters after a forward pass that no backward pass follows.

    The next forward pass would not gather them again, even if the weights are others by then.
    """
    for module in policy.compute.modules() if policy.compute else ():
        if isinstance(module, FSDPModule):
            module.reshard()
