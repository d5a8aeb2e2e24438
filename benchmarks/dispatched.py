"""Count what an update asks of a GPU: operations, waits of the host, bytes. No GPU is needed.

    python benchmarks/dispatched.py

An operation is at least one kernel, and costs the host a few microseconds. A wait keeps it from
asking for the next one until the GPU has done all before it. Bytes are those that operations which
are neither products of matrices nor attention read and write: what fusing them would save.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from card.work import TINY, random_experience
from counts import Group
from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.engines.base import Request
from mugrpo.engines.continuous import EagerSequences
from mugrpo.engines.static import StaticSlots
from mugrpo.model.loading import load_tokenizer
from mugrpo.model.policy import Policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer

# Operations whose result's size or value the host needs. It waits until the GPU has it.
WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "masked_scatter_backward", "equal"),
    *("_unique2", "unique_dim", "unique_consecutive", "bincount", "repeat_interleave"),
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
COPIES = {"copy_", "_to_copy"}
# They launch nothing.
FREE = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "is_same_size"}
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear", "matmul"}
LOOKUPS = {"index_select", "index", "gather", "embedding", "take"}  # they read what they return


class Counted(TorchDispatchMode):
    """Counts the operations, waits and bytes of GPU tensors within its block.

    Without a GPU, these stand for tensors of a GPU: those in `present`, results computed from them,
    and tensors made with `device=` or sent with `.to(device)`. It raises RuntimeError if an
    operation mixes them with
    tensors of the host, as CUDA would. Views and metadata are no operations: an operation's
    result is new memory, or memory that it changes.

    `waits` has what the host waits for: numbers (`item`, `if`), results whose size depends on
    numbers (`nonzero`, an index of bools), copies to the host (`cpu`, `tolist`, `numpy`), and from
    it, unless they are `non_blocking`. Not seen: whether memory is pinned, without which these
    wait, too; waits within a kernel or an allocation; what compiled code does (nothing is
    compiled while this counts).
    """

    def __init__(self, present: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()  # bytes
        self._storages: dict[int, Any] = {}  # kept, so that no address is used again
        self._functions = _Functions(self)
        self._quiet = False
        self.mark(present)

    def __enter__(self) -> "Counted":
        super().__enter__()
        self._functions.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._functions.__exit__(*error)
        super().__exit__(*error)

    def mark(self, values: Any) -> None:
        """Take the tensors among `values` for tensors on the GPU."""
        for tensor in tensors_in(values):
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = storage

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda or tensor.untyped_storage()._cdata in self._storages

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Count nothing within the block."""
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        here = [tensor for tensor in given if self.has(tensor)]
        if self._quiet or not here:
            return func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        with self.quiet():
            result = func(*args, **kwargs)
        self._waits(name, args, kwargs, given, here)
        made = tensors_in(result)
        known = {tensor.untyped_storage()._cdata for tensor in given}
        view = all(t.untyped_storage()._cdata in known for t in made)
        if name not in COPIES or self.has(args[0]):
            self.mark(made)
        if name in FREE or name in WAITING or (view and not func._schema.is_mutable):
            return result
        self.operations[name] += 1
        if name not in PRODUCTS and "attention" not in name:
            read = [] if name in LOOKUPS else given
            self.moved[name] += sum(map(_bytes, [*read, *made])) + sum(
                _bytes(tensor) for tensor in made if name in LOOKUPS
            )
        return result

    def _waits(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Any,
        given: Sequence[torch.Tensor],
        here: Sequence[torch.Tensor],
    ) -> None:
        """Count an operation's waits."""
        if name in WAITING:
            self.waits[name] += "output_size" not in kwargs
        elif name in INDEXING and self.has(args[0]):
            indices = tensors_in(args[1])
            bools = [t for t in indices if t.dtype in (torch.bool, torch.uint8)]
            self.waits["index of bools"] += sum(map(self.has, bools))
            self.waits["index on the host"] += sum(not self.has(t) for t in indices)
        elif name == "copy_":
            blocking = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            self.waits["copy_"] += len(here) < len(given) and blocking
        elif any(tensor.ndim and not self.has(tensor) for tensor in given):
            raise RuntimeError(f"{name} mixes tensors of the GPU and of the host")


class _Functions(TorchFunctionMode):
    """Sees what a dispatcher on a CPU does not: where tensors are to be, and reads by the host."""

    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self._counted = counted

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs, counted = kwargs or {}, self._counted
        name = getattr(func, "__name__", "")
        given = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if counted._quiet:
            return func(*args, **kwargs)
        if name in ("cpu", "tolist", "numpy", "__array__") and given is not None:
            if not counted.has(given):
                return func(*args, **kwargs)
            counted.waits[name] += 1
            with counted.quiet():
                return func(given.clone(), *args[1:], **kwargs)
        placed = kwargs.get("device") is not None
        if name == "to" and given is not None:
            placed |= any(isinstance(value, str | torch.device) for value in args[1:])
            if placed and not counted.has(given):
                counted.waits["to"] += not kwargs.get("non_blocking")
                with counted.quiet():
                    result = func(given, *args[1:], **kwargs).clone()
                counted.mark(result)
                return result
            return func(*args, **kwargs)
        if func is torch.Tensor.backward:  # of functions in Python, too
            with self:
                return torch.autograd.backward(given, kwargs.pop("gradient"), **kwargs)
        result = func(*args, **kwargs)
        if placed and not any(map(counted.has, tensors_in(args))):
            if name in ("tensor", "as_tensor", "asarray"):
                counted.waits[name] += 1
            else:
                counted.operations[name] += name not in FREE
            counted.mark(result)
        return result


def tensors_in(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    """Return a tensor's bytes; what is expanded is read once."""
    size = tensor.numel() * tensor.element_size()
    return min(size, tensor.untyped_storage().nbytes())


@torch.library.custom_op("benchmarks::packed_attention", mutates_args=())
def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor
) -> torch.Tensor:
    return query.clone()


@torch.library.custom_op("benchmarks::packed_attention_backward", mutates_args=())
def _attention_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> list[torch.Tensor]:
    return [grad.clone(), torch.zeros_like(key), torch.zeros_like(value)]


_attention.register_autograd(
    lambda ctx, grad: (*_attention_backward(grad, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:3]),
)


def kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    """Be called like `varlen_attn`, as one operation each way. The numbers mean nothing."""
    return _attention(query, key, value, starts)


def config_of(**model: Any) -> RunConfig:
    raw = {
        "preset": "grpo",
        "model": {"precision": "bf16", **model},
        "schedule": {"problems_per_update": 2, "group_size": 4},
        "optimizer": {"micro_batch_tokens": 4096},
    }
    return build_config(raw, "count")


def policy_of(layers: int, config: RunConfig) -> Policy:
    """Return a tiny Qwen2 with random weights, and the norms of a GPU."""
    sizes = {**TINY, "num_hidden_layers": layers}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **sizes))
    _use_torchs_norms(model)
    return Policy(model, load_tokenizer(config.model), config.model, None)


def experience_of(vocab: int) -> Experience:
    """Return eight responses to two prompts, which are one micro-batch."""
    return random_experience(vocab, [Group(9, [20, 31, 14, 1]), Group(12, [7, 25, 16, 30])])


@dataclass
class Update:
    """What one update asks for."""

    tokens: int  # that go through the model
    operations: Counter[str] = field(repr=False)
    waits: Counter[str]
    moved: Counter[str] = field(repr=False)


def count(layers: int, config: RunConfig, attention: Callable[..., Any] | None) -> Update:
    """Count the second update of a model with so many layers. Without `attention`, masks."""
    policy = policy_of(layers, config)
    trainer = Trainer(policy, config)
    policy.kernel = attention
    experience = experience_of(policy.vocab_size)
    trainer.step(experience)
    present = [*policy.model.parameters(), *policy.model.buffers(), *policy.working().parameters()]
    states = [*trainer.optimizer.state.values()]
    with Counted([*present, *tensors_in(states)]) as counted:
        metrics = trainer.step(experience)
    assert not metrics["skipped"]
    tokens = metrics["computed_tokens"]
    return Update(tokens, counted.operations, +counted.waits, counted.moved)


@torch.inference_mode()
def eager_step(form: str, layers: int) -> Counted:
    """Count a decoding step of `form` that the host starts operation by operation."""
    policy = _meta_policy(form, layers, "cpu")
    batch = EagerSequences(policy, 8, 1.0, 32, 1.0)
    batch.cache.split = False  # as on a GPU
    prompt = np.arange(2, 11, dtype=np.int32)
    batch.add({i: Request(prompt, i) for i in range(8)})
    batch.advance()
    caches = [layer.prompts + layer.responses for layer in batch.cache.layers]
    state = [batch.uniforms_ST, batch.ids_ST, batch.logprobs_ST, batch.stop_ids]
    counted = Counted([*policy.model.parameters(), *policy.model.buffers()])
    counted.mark([caches, state, batch.cache._groups])
    with counted:
        batch.advance()
    return counted


@torch.inference_mode()
def static_step(form: str, layers: int) -> Counted:
    """Count a decoding step of static shapes. Its tensors are on the meta device.

    So the kernel of a GPU is counted, and a wait raises NotImplementedError.
    """
    policy = _meta_policy(form, layers, "meta")
    slots = StaticSlots(policy, 8, 256, 32, 1.0)
    text = policy.model.config
    keys = torch.empty(text.num_key_value_heads, 9, text.head_dim, device="meta").bfloat16()
    slots.begin(torch.arange(8, device="meta"), ([(keys, keys)] * layers, keys))
    slots.has_kernel = True
    present = [value for value in vars(slots).values() if isinstance(value, torch.Tensor)]
    counted = Counted([*policy.model.parameters(), *policy.model.buffers(), *present])
    with policy.evaluating(), counted:
        slots.step(8)
    return counted


def _meta_policy(form: str, layers: int, device: str) -> Policy:
    """Return a tiny model of `form` in bf16 on `device`, with the norms of a GPU."""
    sizes = {**TINY, "head_dim": 16, "num_hidden_layers": layers}
    torch.manual_seed(0)
    with torch.device(device):
        config = AutoConfig.for_model(form, **sizes)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    _use_torchs_norms(model)
    options = config_of().model.model_copy(update={"precision": "fp32"})  # it is in bf16 already
    return Policy(model, load_tokenizer(options), options, None)


def _use_torchs_norms(model: Any) -> None:
    for norm in (m for m in model.modules() if type(m).__name__.endswith("RMSNorm")):
        norm.forward = partial(_norm, norm)


@torch.library.custom_op("benchmarks::rms_norm", mutates_args=())
def _rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(hidden, weight.shape, weight, eps)


@torch.library.custom_op("benchmarks::rms_norm_backward", mutates_args=())
def _rms_norm_backward(
    grad: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor
) -> list[torch.Tensor]:
    return [grad.clone(), torch.zeros_like(weight)]  # the numbers mean nothing


_rms_norm.register_fake(lambda hidden, weight, eps: torch.empty_like(hidden))
_rms_norm.register_autograd(
    lambda ctx, grad: (*_rms_norm_backward(grad, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:2]),
)


def _norm(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Compute torch's own norm as one operation each way, as on a GPU: a CPU takes more."""
    return cast(torch.Tensor, _rms_norm(hidden, layer.weight, layer.variance_epsilon))


def decoding_rows() -> Iterator[tuple[str, ...]]:
    """Yield the table's rows of decoding steps."""
    for name, step in {"eager": eager_step, "static": static_step}.items():
        for form in ("qwen2", "llama", "qwen3"):
            two, three = (step(form, layers) for layers in (2, 3))
            layer = three.operations.total() - two.operations.total()
            besides = two.operations.total() - 2 * layer
            waits = two.waits.total()
            yield f"{name} decoding step, {form}", *map(str, (layer, besides, waits)), ""


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the table's rows."""
    yield "", "operations a layer", "besides", "host waits", "kB a token and layer"
    ways = {
        "packed kernel": ({}, kernel),
        "packed kernel, checkpointing": ({"gradient_checkpointing": True}, kernel),
        "masks": ({}, None),
    }
    yield from decoding_rows()
    for name, (model, attention) in ways.items():
        two, three = (count(layers, config_of(**model), attention) for layers in (2, 3))
        layer = three.operations.total() - two.operations.total()
        moved = (three.moved.total() - two.moved.total()) / two.tokens
        besides = two.operations.total() - 2 * layer
        cells = (layer, besides, two.waits.total(), f"{moved / 1000:.1f}")
        yield (name, *map(str, cells))


def main() -> None:
    table = [*rows()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    main()
